"""What performs jobs: the interface between studies and engines.

`local_pool.py` has the processes of this machine, `ray_engine.py` a Ray cluster.
"""

import errno
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Resources:
    """What a job needs while it runs; the local pool gives every job one process.

    Attributes:
        cpus: number of cores.
        gpus: fraction of a GPU, or number of GPUs, where the cluster has any.
    """

    cpus: float = 1
    gpus: float = 0


class Job(Protocol):
    """Work that runs in a process of its own and can be resumed after a kill."""

    @property
    def key(self) -> str:
        """Return a name made of everything that decides the outcome."""

    @property
    def title(self) -> str:
        """Return a few words for people."""

    @property
    def cost(self) -> float:
        """Return how long it takes, in units that are the same for all jobs."""

    @property
    def resources(self) -> Resources:
        """Return what it needs while it runs."""

    def folder(self, root: Path) -> Path:
        """Return where its result is."""

    def done(self, root: Path) -> float:
        """Return the fraction that is done; 1 when it is finished."""

    def perform(self, root: Path) -> None:
        """Do it, resume it, or do nothing if it is finished; never twice at once."""


Ended = tuple[Job, str | None]
"""A job that has ended, with its error message, or None if it is finished."""


class Engine(Protocol):
    """What a study needs of an engine."""

    @property
    def workers(self) -> int:
        """Return how many jobs of one core run at once."""

    def submit(self, job: Job, root: Path) -> None:
        """Take a job; it is performed when there is room for it."""

    def progress(self) -> list[Job]:
        """Return the jobs that are running."""

    def result(self, timeout: float) -> Ended | None:
        """Return the next job that has ended; None if none has within so many seconds."""

    def cancel(self) -> None:
        """End all jobs that have not ended, and all processes of the engine."""


def attempt(job: Job, root: Path) -> str | None:
    """Perform a job in a worker; return its error as a message, since some cannot be pickled."""
    warnings.simplefilter("ignore", RuntimeWarning)
    try:
        job.perform(root)
    except Exception as error:
        if _disk_is_full(error):
            return (
                f"the disk of {root} is full ({error}); free some space and run the same command "
                "again: finished runs and complete checkpoints are kept"
            )
        return f"{type(error).__name__}: {error}"
    return None


def _disk_is_full(error: Exception) -> bool:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or os.strerror(errno.ENOSPC) in str(error)  # as some writers put it


def cores() -> int:
    """Return the number of processes that can run at once on this machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
