"""Jobs without training, for tests of engines; workers import no torch for them.

A job writes one line per step, which is its checkpoint, and continues after the last line. So the
lines show what was repeated, and by which process each step was done.
"""

import errno
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphase.experiments.engine import Resources
from antiphase.experiments.leases import LEASES, lease


@dataclass(frozen=True)
class StubJob:
    """A job of some steps.

    Attributes:
        key: its name.
        steps: how many.
        seconds: that a step takes.
        fault: what happens before the second step: "killed" and "stopped" by a signal, the first
            time; "killed always"; "full" for a disk without space; "" for nothing.
    """

    key: str
    steps: int = 2
    seconds: float = 0.0
    fault: str = ""
    cpus: float = 1

    @property
    def resources(self) -> Resources:
        return Resources(self.cpus)

    @property
    def title(self) -> str:
        return f"stub {self.key}"

    @property
    def cost(self) -> float:
        return float(self.steps)

    def folder(self, root: Path) -> Path:
        return root / self.key

    def lines(self, root: Path) -> list[str]:
        path = self.folder(root) / "steps"
        return path.read_text().splitlines() if path.exists() else []

    def done(self, root: Path) -> float:
        if (self.folder(root) / "model" / "config.json").exists():
            return 1.0
        return min(len(self.lines(root)) / self.steps, 0.999)

    def perform(self, root: Path) -> None:
        with lease(root / LEASES, self.key):
            folder = self.folder(root)
            folder.mkdir(parents=True, exist_ok=True)
            for step in range(len(self.lines(root)), self.steps):
                time.sleep(self.seconds)
                if step == 1:
                    self._fail(folder)
                with (folder / "steps").open("a") as file:
                    file.write(f"{step} {os.getpid()}\n")
            (folder / "model").mkdir(exist_ok=True)
            (folder / "model" / "config.json").write_text("{}")

    def _fail(self, folder: Path) -> None:
        if self.fault == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        if not self.fault or (self.fault != "killed always" and (folder / "failed").exists()):
            return
        (folder / "failed").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP if self.fault == "stopped" else signal.SIGKILL)


def assert_each_step_once(jobs: Sequence[StubJob], root: Path) -> None:
    """Nothing is lost and nothing is done twice."""
    for job in jobs:
        assert job.done(root) == 1, job
        steps = [int(line.split()[0]) for line in job.lines(root)]
        assert steps == list(range(job.steps)), job


def shared_jobs() -> list[StubJob]:
    """Return the jobs of two studies that run at once."""
    return [StubJob(str(number), seconds=0.1) for number in range(8)]
