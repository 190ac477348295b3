"""Finished runs without their weights, in one file: a study continues from it on another machine.

A line per run: its key, when it began, and its small files: recipe, held-out metrics, and what was
measured of the model (`measured.json`). Weights of hundreds of models are too large for a
repository; what a report needs of them is not.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from antiphase.experiments.measured_values import MEASURED
from antiphase.training.callbacks import METRICS, read_metrics
from antiphase.training.checkpoints import write_atomic
from antiphase.training.criterion import CRITERION
from antiphase.training.run import RECIPE

KEPT = (RECIPE, "environment.json", CRITERION, MEASURED, "model/config.json")

Wanted = Callable[[str, set[str]], bool]
"""From a run's key and the names of what was measured of it to whether it is to be restored."""


class Records:
    """The file of finished runs.

    Args:
        path: of the file; one that does not exist is created with the first run.
        root: folder of all runs.
        kept: files of a run that are kept; the presence of the last says that it is finished.

    Raises:
        ValueError: a line of the file is not the record of a run.
    """

    def __init__(self, path: Path, root: Path, kept: tuple[str, ...] = KEPT) -> None:
        self.path, self.root, self.kept = path, root, kept
        self.restored: set[str] = set()
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        *lines, incomplete = text.split("\n")
        if incomplete:  # a process was killed while it wrote
            write_atomic(path, text[: -len(incomplete)])
        records = [self._record(number, line) for number, line in enumerate(lines, start=1)]
        self._records = {record["key"]: record for record in records}  # the last of a key counts

    def restore(
        self,
        wanted: Wanted = lambda key, measured: True,
        console: Console | None = None,
        what: str = "runs",
    ) -> int:
        """Write the folders of recorded runs that are missing.

        Args:
            wanted: which ones; default: all. A run of which not enough was measured has to be
                trained again, since its weights are not kept.
            console: where it is said how many were taken, if any were.
            what: they are called there.

        Returns:
            How many were written. They count as finished and have no weights.
        """
        written = 0
        for key, record in self._records.items():
            folder, files = self.root / key, record["files"]
            if (folder / RECIPE).is_file() or not wanted(key, {*_measured(record)}):
                continue  # begun or finished here
            for name in record["milestones"]:
                (folder / "milestones" / name).mkdir(parents=True, exist_ok=True)
            for name in (n for n in files if n != RECIPE):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(files[name], encoding="utf-8")
            write_atomic(folder / RECIPE, files[RECIPE])  # last: a run without it is written anew
            os.utime(folder / RECIPE, (record["began"], record["began"]))  # as locks see it
            self.restored.add(key)
            written += 1
        if written and console is not None:
            text = f"{written} finished {what} taken from {self.path}"
            console.print(text, highlight=False, soft_wrap=True)
        return written

    def add(self, folder: Path) -> None:
        """Append a finished run, unless the file has all of it; what it had is kept."""
        there = [name for name in self.kept if (folder / name).is_file()]
        files = {name: (folder / name).read_text() for name in there}
        held_out = [line for line in read_metrics(folder) if "held_out_loss" in line]
        files[METRICS] = "".join(json.dumps(line) + "\n" for line in held_out)
        record = {
            "key": folder.name,
            "began": (folder / RECIPE).stat().st_mtime,
            "milestones": sorted(path.name for path in folder.glob("milestones/*")),
            "files": files,
        }
        known = self._records.get(folder.name)
        if known is not None:
            before, now = _measured(known), _measured(record)
            if {*now} <= {*before}:
                return
            files[MEASURED] = json.dumps({**before, **now})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._records[folder.name] = record

    def _record(self, number: int, line: str) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads(line)
            files = record["files"]
            names = [record["key"], *record["milestones"]]  # of folders
            plain = all(isinstance(name, str) and Path(name).name == name for name in names)
            known = {RECIPE, self.kept[-1]} <= {*files} <= {*self.kept, METRICS}
            if not (plain and known and isinstance(record["began"], float)):
                raise ValueError("unexpected fields")
            _measured(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{self.path}, line {number}: is not the record of a run ({error}); remove the line"
                " to train that run again"
            ) from error
        return record


def _measured(record: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured of a recorded run, by name."""
    return dict(json.loads(record["files"].get(MEASURED, "{}")))
