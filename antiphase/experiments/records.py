"""Finished runs without their weights, in one file: a study continues from it on another machine.

A line per run: its key, when it began, and its small files: recipe, held-out metrics, and what was
measured of the model (`measured.json`). Weights of hundreds of models are too large for a
repository; what a report needs of them is not.
"""

import json
import os
from pathlib import Path
from typing import Any

from antiphase.experiments.measured_values import MEASURED
from antiphase.training.callbacks import METRICS, read_metrics
from antiphase.training.criterion import CRITERION

KEPT = ("recipe.yaml", "environment.json", CRITERION, MEASURED, "model/config.json")


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
        self._keys: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def restore(self) -> int:
        """Write the folders of recorded runs that are missing.

        Returns:
            How many were written. They count as finished and have no weights.
        """
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []
        written = 0
        for number, line in enumerate(lines, start=1):
            record = self._record(number, line)
            self._keys.add(record["key"])
            folder = self.root / record["key"]
            if (folder / "recipe.yaml").is_file():
                continue  # begun or finished here
            last = self.kept[-1]
            for name in (n for n in record["files"] if n != last):
                _write(folder / name, record["files"][name])
            for name in record["milestones"]:
                (folder / "milestones" / name).mkdir(parents=True, exist_ok=True)
            os.utime(folder / "recipe.yaml", (record["began"], record["began"]))  # as locks see it
            _write(folder / last, record["files"][last])
            written += 1
        return written

    def add(self, folder: Path) -> None:
        """Append a finished run, unless it is there."""
        if folder.name in self:
            return
        there = [name for name in self.kept if (folder / name).is_file()]
        files = {name: (folder / name).read_text() for name in there}
        held_out = [line for line in read_metrics(folder) if "held_out_loss" in line]
        files[METRICS] = "".join(json.dumps(line) + "\n" for line in held_out)
        record = {
            "key": folder.name,
            "began": (folder / "recipe.yaml").stat().st_mtime,
            "milestones": sorted(path.name for path in folder.glob("milestones/*")),
            "files": files,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._keys.add(folder.name)

    def _record(self, number: int, line: str) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads(line)
            named = isinstance(record["key"], str) and Path(record["key"]).name == record["key"]
            files = {*record["files"]}
            known = files <= {*self.kept, METRICS} and {"recipe.yaml", self.kept[-1]} <= files
            if not (named and known and isinstance(record["began"], float)):
                raise ValueError("unexpected fields")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{self.path}, line {number}: is not the record of a run ({error}); remove the line"
                " to train that run again"
            ) from error
        return record


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
