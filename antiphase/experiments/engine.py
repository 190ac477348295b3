"""The engine that performs jobs: here, a pool of processes with one thread each.

An engine for a cluster would implement `Engine` and be passed in its place.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text


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

    def done(self, root: Path) -> float:
        """Return the fraction that is done; 1 when it is finished."""

    def perform(self, root: Path) -> None:
        """Do it, resume it, or do nothing if it is finished; never twice at once."""


class Engine(Protocol):
    """What the lab needs of an engine."""

    def run(self, jobs: Sequence[Any], root: Path) -> Iterator[tuple[Any, str | None]]:
        """Perform the jobs; yield each as it ends, with its error message or None."""


@dataclass
class LocalEngine:
    """All cores of this machine, one job per core."""

    workers: int = field(default_factory=lambda: cores())
    on_tick: Callable[[list[Job]], None] = lambda running: None  # called about twice a second

    def run(self, jobs: Sequence[Any], root: Path) -> Iterator[tuple[Any, str | None]]:
        """Perform the jobs in processes of their own."""
        context = multiprocessing.get_context("spawn")
        waiting = list(jobs)
        with ProcessPoolExecutor(
            self.workers, mp_context=context, initializer=_end_with_parent
        ) as pool:
            running: dict[Future[str | None], Job] = {}
            while waiting or running:
                while waiting and len(running) < self.workers:
                    job = waiting.pop(0)
                    running[pool.submit(_attempt, job, root)] = job
                done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                self.on_tick(list(running.values()))
                for future in done:
                    yield running.pop(future), future.result()


def _end_with_parent() -> None:
    """Let a worker exit when its parent process is gone, even after a SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_after_parent() -> None:
        parent.join()
        os._exit(1)  # safe: checkpoints are complete at any moment

    threading.Thread(target=exit_after_parent, daemon=True).start()


def _attempt(job: Job, root: Path) -> str | None:
    """Perform one job in a worker; return its error as a message, since some cannot be pickled."""
    import warnings

    warnings.simplefilter("ignore", RuntimeWarning)
    try:
        job.perform(root)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def train_all(
    jobs: Sequence[Job], root: Path, console: Console, engine: LocalEngine | None = None
) -> dict[str, str]:
    """Perform the jobs that are not finished yet, with a live display.

    Args:
        jobs: may repeat; jobs of the same key are one.
        root: folder of all runs.
        console: where progress is shown.
        engine: default: all cores of this machine.

    Returns:
        The error messages of failed jobs, by key.
    """
    unfinished = {j.key: j for j in jobs if j.done(root) < 1}
    todo = sorted(unfinished.values(), key=lambda job: job.cost, reverse=True)
    console.print(
        f"{len({j.key for j in jobs})} runs, {len(todo)} of them to train", highlight=False
    )
    if not todo:
        return {}
    engine = engine or LocalEngine()
    display = _Display(todo, root)
    engine.on_tick = display.update
    errors: dict[str, str] = {}
    live = Live(display.group, console=console, refresh_per_second=4, transient=True)
    with live if console.is_terminal else nullcontext():
        for job, error in engine.run(todo, root):
            display.finish(job)
            if error is not None:
                errors[job.key] = error
                console.print(Text.assemble(("failed", "red"), f" {job.title}: {error}"))
            elif not console.is_terminal:
                console.print(Text(f"done {job.title} ({display.left()} left)"))
    return errors


class _Display:
    """Progress bars of the running jobs and of all, with the time left."""

    def __init__(self, jobs: list[Job], root: Path) -> None:
        self.root, self.jobs = root, jobs
        self.total = sum(job.cost for job in jobs)
        self.done = 0.0  # of the total
        self.before = {j.key: j.done(root) for j in jobs}  # fraction done by earlier attempts
        self.ended: set[str] = set()
        self.start = time.monotonic()
        name = TextColumn("{task.description}", markup=False)
        columns = (name, BarColumn(), TextColumn("{task.fields[note]}"))
        self.bars = Progress(*columns)
        self.all_runs = self.bars.add_task("all runs", total=self.total, note="")
        self.lines: dict[str, object] = {}
        self.group = Group(self.bars)

    def left(self) -> int:
        """Return the number of jobs that have not ended."""
        return len(self.jobs) - len(self.ended)

    def update(self, running: list[Job]) -> None:
        """Show the progress of each running job, and the time left."""
        partly = fresh = 0.0
        for job in running:
            fraction = job.done(self.root)
            partly += fraction * job.cost
            fresh += max(fraction - self.before[job.key], 0.0) * job.cost
            if job.key not in self.lines:
                self.lines[job.key] = self.bars.add_task(job.title, total=1.0, note="")
            self.bars.update(self.lines[job.key], completed=fraction)  # type: ignore[arg-type]
        seconds = time.monotonic() - self.start
        worked = self.done + fresh
        note = f"{self.left()} left"
        if worked > 0 and seconds > 5:
            rest = (self.total - self.done - partly) * seconds / worked
            note += f", about {duration(rest)}"
        self.bars.update(self.all_runs, completed=self.done + partly, note=note)

    def finish(self, job: Job) -> None:
        """Remove a job that has ended."""
        self.done += job.cost
        self.ended.add(job.key)
        if job.key in self.lines:
            self.bars.remove_task(self.lines.pop(job.key))  # type: ignore[arg-type]


def duration(seconds: float) -> str:
    """Return a time for people, e.g. "2 h 5 min"."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def cores() -> int:
    """Return the number of processes that can run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
