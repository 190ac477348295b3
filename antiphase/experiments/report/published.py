"""The published study that ships with the package, shown beside what was just measured."""

from pathlib import Path

from antiphase.experiments.results import RESULTS, Study, load_study

FOLDER = Path(__file__).parents[1] / "published_study"
ABSENT = "No other published study is shown beside it."


def published_beside(study: Study) -> Study | None:
    """Return the published study; None if it does not ship, or is the given one.

    Raises:
        ValueError: its results.json cannot be read.
    """
    if not (FOLDER / RESULTS).is_file():
        return None
    published = load_study(FOLDER)
    same = study.lock is not None and study.lock == published.lock
    return None if same else published
