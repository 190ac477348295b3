"""The published study that ships with the package, shown beside what was just measured."""

from antiphase.experiments.results import PUBLISHED, RESULTS, Study, load_study

ABSENT = "No other published study is shown beside it."


def published_beside(study: Study) -> Study | None:
    """Return the published study; None if it does not ship, or is the given one.

    Raises:
        ValueError: its results.json cannot be read.
    """
    if not (PUBLISHED / RESULTS).is_file():
        return None
    published = load_study(PUBLISHED)
    same = study.lock is not None and study.lock == published.lock
    return None if same else published
