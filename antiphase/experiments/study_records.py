"""What a study keeps of its runs beyond their weights, and who measured what.

Tests measure every run of their arms by named functions, whose values stay in the run's folder
(`measured_values.py`). With a file of records, a seed is measured as soon as all its arms are
trained, and its runs are recorded; another machine then needs no weights of it. Where every test
measures model by model, each run is measured and recorded by itself.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console

from antiphase.experiments.arms import Arm, TrainingRun
from antiphase.experiments.engine import Job
from antiphase.experiments.experiment import Experiment
from antiphase.experiments.leases import LEASES, holders, lease
from antiphase.experiments.lock import LOCK
from antiphase.experiments.measured_values import stored_values
from antiphase.experiments.records import Records
from antiphase.experiments.trained_models import ListedMeasures, TrainedModels, has_weights
from antiphase.experiments.training_tables import training_tables

MEASURES = "version 2"  # of training tables, claims and the example of attention; raised by hand
Runs = dict[str, list[TrainingRun]]
"""The runs of each arm, by its name, one per seed."""


def version_of(test: Experiment) -> str:
    """Return a test's version, in words."""
    return f"version {test.version}"


def measured_as(number: int, test: Experiment) -> str:
    """Return who measures, in the names of values: a test and its version."""
    return f"test {number}, {version_of(test)}"


def distinct_arms(tests: Iterable[Experiment]) -> list[Arm]:
    """Return the arms of tests, each once.

    Raises:
        ValueError: two different arms have the same name.
    """
    found: dict[str, Arm] = {}
    for test in tests:
        for arm in test.arms:
            if found.setdefault(arm.name, arm) != arm:
                raise ValueError(f"arms: two different arms are called {arm.name!r}; rename one")
    return list(found.values())


def measuring(folder: Path, console: Console) -> AbstractContextManager[bool]:
    """Let one study at a time measure in a folder; another one waits, then finds the results."""
    if (holder := holders(folder / LEASES).get("measuring")) and not holder.gone:
        console.print(f"waiting: {holder} measures in this folder", highlight=False, soft_wrap=True)
    return lease(folder / LEASES, "measuring")


def kept_runs(repository: Path, folder: Path | None = None) -> Path:
    """Return the file of a study's finished runs in the repository; put its lock into the folder.

    Args:
        repository: folder with the lock and, once a run is finished, `runs.jsonl`.
        folder: of the study; None for a study without a lock.

    Raises:
        ValueError: the repository has nothing of the study, or this is no checkout.
    """
    runs = repository / "runs.jsonl"
    needed = runs if folder is None else repository / LOCK
    if not needed.is_file():
        raise ValueError(
            f"--resume: there is no {needed} here; run in the root of a checkout that has it, or "
            "start without --resume"
        )
    if folder is not None and not (folder / LOCK).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(needed, folder / LOCK)
    return runs


class StudyRecords:
    """The file of a study's finished runs.

    Args:
        path: of the file.
        folder: of the study.
        console: where progress is shown.
    """

    def __init__(self, path: Path, folder: Path, console: Console) -> None:
        self.folder, self.root, self.console = folder, folder / "trained", console
        self._records = Records(path, self.root)
        self._tests: Mapping[int, Experiment] = {}
        self._seeds: list[Runs] = []

    def restore_tuning(self, seeds: Sequence[int]) -> None:
        """Take the recorded tuning runs, which are those with these seeds."""

        def wanted(key: str, measured: set[str]) -> bool:
            return int(key.rsplit("-", 2)[1]) in seeds

        self._records.restore(wanted, self.console, "tuning runs")

    def record_tuning(self, run: Job) -> None:
        """Record a finished tuning run: its held-out losses are all that is needed of it."""
        self._records.add(run.folder(self.root))

    def restore_runs(self, tests: Mapping[int, Experiment], runs: Runs) -> None:
        """Take the recorded runs of a study, as far as all its tests have measured them.

        Args:
            tests: to be measured, by number.
            runs: of each arm.
        """
        self._tests = tests
        self._seeds = [
            {name: [run] for name, run in zip(runs, group, strict=True)}
            for group in zip(*runs.values(), strict=True)
        ]
        needed = {run.key: {MEASURES} for mine in runs.values() for run in mine}
        for number, test in tests.items():
            for run in (run for arm in test.arms for run in runs[arm.name]):
                needed[run.key].add(measured_as(number, test))

        def wanted(key: str, measured: Iterable[str]) -> bool:
            return key in needed and needed[key] <= {n.partition(": ")[0] for n in measured}

        for key in needed:  # taken for other tests, of which fewer were measured
            folder = self.root / key
            finished = (folder / "model" / "config.json").is_file()
            lost = finished and not has_weights(folder / "model")
            if lost and not wanted(key, stored_values(folder)):
                shutil.rmtree(folder)
        self._records.restore(wanted, self.console)

    def record_run(self, ended: Job) -> None:
        """Measure and record a run that has ended, or all of its seed once they have.

        Where all tests measure model by model, a run does not wait for its seed.
        """
        mine = next(s for s in self._seeds if any(run.key == ended.key for (run,) in s.values()))
        if all(test.by_model for test in self._tests.values()):
            mine = {name: [run] for name, (run,) in mine.items() if run.key == ended.key}
        runs = [run for (run,) in mine.values()]
        restored = all(run.key in self._records.restored for run in runs)
        if restored or not all(run.finished(self.root) for run in runs):
            return
        with measuring(self.folder, self.console):
            for number, test in self._tests.items():
                self._measure(test, mine, measured_as(number, test))
            models = TrainedModels.finished(mine, self.root, MEASURES)
            training_tables(models, distinct_arms(self._tests.values()))
            for run in runs:
                self._records.add(run.folder(self.root))

    def _measure(self, test: Experiment, runs: Runs, who: str) -> None:
        """Measure what a test needs of these runs, which keep it."""
        arms = [arm for arm in test.arms if arm.name in runs]
        models = TrainedModels.finished({arm.name: runs[arm.name] for arm in arms}, self.root, who)
        if not test.by_model:
            test.measure(models)
            return
        for arm in arms:
            listed = ListedMeasures(models[arm][0])
            test.measure(listed)
            for measure in listed.asked.get(arm.name, []):
                models.values(arm, measure)
