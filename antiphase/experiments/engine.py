"""Who does the training runs: here, a pool of processes with one thread each.

A cluster's engine would implement `Engine` and be given instead.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn


class Job(Protocol):
    """A run that can be done in a process of its own, and gone on with after a kill."""

    @property
    def key(self) -> str:
        """Return a name of everything that decides the outcome."""

    @property
    def title(self) -> str:
        """Return a few words for people."""

    @property
    def cost(self) -> float:
        """Return how long it takes, beside others."""

    def done(self, root: Path) -> float:
        """Return the share that is done; 1 when it is finished."""

    def perform(self, root: Path) -> None:
        """Do it, go on with it, or do nothing if it is finished; never twice at once."""


class Engine(Protocol):
    """What the lab asks of an engine."""

    def run(self, jobs: Sequence[Any], root: Path) -> Iterator[tuple[Any, str | None]]:
        """Do the jobs; return each as it ends, with what went wrong or None."""


@dataclass
class LocalEngine:
    """All cores of this machine, a job each."""

    workers: int = field(default_factory=lambda: cores())
    watch: Callable[[list[Job]], None] = lambda running: None  # called about twice a second

    def run(self, jobs: Sequence[Any], root: Path) -> Iterator[tuple[Any, str | None]]:
        """Do the jobs in processes of their own."""
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
                self.watch(list(running.values()))
                for future in done:
                    yield running.pop(future), future.result()


def _end_with_parent() -> None:
    """Let a worker end when the process that asked for it is gone, however that went."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)  # checkpoints are whole at any moment

    threading.Thread(target=watch, daemon=True).start()


def _attempt(job: Job, root: Path) -> str | None:
    """Do one job in a worker; what goes wrong is told, not raised."""
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
    """Train what is not trained yet, with a live view; return what went wrong, by key."""
    unfinished = {j.key: j for j in jobs if j.done(root) < 1}
    todo = sorted(unfinished.values(), key=lambda job: job.cost, reverse=True)
    console.print(
        f"{len({j.key for j in jobs})} runs, {len(todo)} of them to train", highlight=False
    )
    if not todo:
        return {}
    engine = engine or LocalEngine()
    view = _View(todo, root, engine.workers)
    engine.watch = view.update
    faults: dict[str, str] = {}
    with Live(view.picture, console=console, refresh_per_second=4, transient=True):
        for job, fault in engine.run(todo, root):
            view.finish(job)
            if fault is not None:
                faults[job.key] = fault
                console.print(f"[red]failed[/] {job.title}: {fault}", highlight=False)
            elif not console.is_terminal:
                console.print(f"done {job.title} ({view.left()} left)", highlight=False)
    return faults


class _View:
    """What runs, what waits, and when it will be over."""

    def __init__(self, jobs: list[Job], root: Path, workers: int) -> None:
        self.root, self.jobs, self.workers = root, jobs, workers
        self.total = sum(job.cost for job in jobs)
        self.done = 0.0  # of the total
        self.before = {j.key: j.done(root) for j in jobs}  # of earlier attempts
        self.ended: set[str] = set()
        self.start = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
        self.bars = Progress(*columns)
        self.whole = self.bars.add_task("all runs", total=self.total, note="")
        self.lines: dict[str, object] = {}
        self.picture = Group(self.bars)

    def left(self) -> int:
        """Return how many jobs have not ended."""
        return len(self.jobs) - len(self.ended)

    def update(self, running: list[Job]) -> None:
        """Show where each running job is, and the time left."""
        partly = fresh = 0.0
        for job in running:
            share = job.done(self.root)
            partly += share * job.cost
            fresh += max(share - self.before[job.key], 0.0) * job.cost
            if job.key not in self.lines:
                self.lines[job.key] = self.bars.add_task(job.title, total=1.0, note="")
            self.bars.update(self.lines[job.key], completed=share)  # type: ignore[arg-type]
        seconds = time.monotonic() - self.start
        worked = self.done + fresh
        note = f"{self.left()} left"
        if worked > 0 and seconds > 5:
            rest = (self.total - self.done - partly) * seconds / worked
            note += f", about {_duration(rest)}"
        self.bars.update(self.whole, completed=self.done + partly, note=note)

    def finish(self, job: Job) -> None:
        """Take a job off the list."""
        self.done += job.cost
        self.ended.add(job.key)
        if job.key in self.lines:
            self.bars.remove_task(self.lines.pop(job.key))  # type: ignore[arg-type]


def _duration(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def cores() -> int:
    """Return how many processes can work at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
