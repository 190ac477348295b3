"""Who does the training runs: here, a pool of processes with one thread each.

A cluster's engine would implement `Engine` and be given instead.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn

from antiphase.lab.runs import Job, cores, perform


class Engine(Protocol):
    """What the lab asks of an engine."""

    def run(self, jobs: Sequence[Job], root: Path) -> Iterator[tuple[Job, str | None]]:
        """Do the jobs; return each as it ends, with what went wrong or None."""


@dataclass
class LocalEngine:
    """All cores of this machine, a job each."""

    workers: int = field(default_factory=cores)
    watch: Callable[[list[Job]], None] = lambda running: None  # called about twice a second

    def run(self, jobs: Sequence[Job], root: Path) -> Iterator[tuple[Job, str | None]]:
        """Do the jobs in processes of their own."""
        context = multiprocessing.get_context("spawn")
        waiting = list(jobs)
        with ProcessPoolExecutor(self.workers, mp_context=context) as pool:
            running: dict[Future[str | None], Job] = {}
            while waiting or running:
                while waiting and len(running) < self.workers:
                    job = waiting.pop(0)
                    running[pool.submit(_attempt, job, root)] = job
                done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                self.watch(list(running.values()))
                for future in done:
                    yield running.pop(future), future.result()


def _attempt(job: Job, root: Path) -> str | None:
    """Do one job in a worker; what goes wrong is told, not raised."""
    import warnings

    warnings.simplefilter("ignore", RuntimeWarning)
    try:
        perform(job, root)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def train_all(
    jobs: Sequence[Job], root: Path, console: Console, engine: LocalEngine | None = None
) -> dict[Job, str]:
    """Train what is not trained yet, with a live view; return what went wrong, by job."""
    todo = sorted(
        {j.key: j for j in jobs if not j.finished(root)}.values(), key=_dear, reverse=True
    )
    console.print(
        f"{len({j.key for j in jobs})} runs, {len(todo)} of them to train", highlight=False
    )
    if not todo:
        return {}
    engine = engine or LocalEngine()
    view = _View(todo, root, engine.workers)
    engine.watch = view.update
    faults: dict[Job, str] = {}
    with Live(view.picture, console=console, refresh_per_second=4, transient=True):
        for job, fault in engine.run(todo, root):
            view.finish(job)
            if fault is not None:
                faults[job] = fault
                console.print(f"[red]failed[/] {job.title}: {fault}", highlight=False)
            elif not console.is_terminal:
                console.print(f"done {job.title} ({view.left()} left)", highlight=False)
    return faults


def _dear(job: Job) -> int:
    return job.recipe.steps * job.recipe.batch_size * int(job.recipe.task_options.get("length", 64))


class _View:
    """What runs, what waits, and when it will be over."""

    def __init__(self, jobs: list[Job], root: Path, workers: int) -> None:
        self.root, self.jobs, self.workers = root, jobs, workers
        self.total = sum(map(_dear, jobs))
        self.done = 0  # of the total
        self.before = {j.key: j.step(root) for j in jobs}  # of earlier attempts
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
            share = min(job.step(self.root) / job.recipe.steps, 1.0)
            partly += share * _dear(job)
            old = self.before[job.key] / job.recipe.steps
            fresh += max(share - old, 0.0) * _dear(job)
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
        self.done += _dear(job)
        self.ended.add(job.key)
        if job.key in self.lines:
            self.bars.remove_task(self.lines.pop(job.key))  # type: ignore[arg-type]


def _duration(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
