"""Train what is missing: jobs to an engine, with a live display of their progress."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from antiphase.experiments.engine import Engine, Job
from antiphase.experiments.leases import LEASES, StallWatch, holders, patience
from antiphase.experiments.local_pool import LocalEngine

J = TypeVar("J", bound=Job)
TICK = 0.5  # seconds between two updates of the display


def train_all(
    jobs: Sequence[Job],
    root: Path,
    console: Console,
    engine: Engine | None = None,
    after_each: Callable[[Job], None] | None = None,
) -> dict[str, str]:
    """Perform the jobs that are not finished yet, with a live display.

    A job whose process gives no sign of life is submitted once more; the new attempt takes over its
    lease and continues from its last checkpoint.

    Args:
        jobs: in the order in which they begin; may repeat, jobs of the same key are one.
        root: folder of all runs; for an engine of several machines, shared by them.
        console: where progress is shown.
        engine: default: all cores of this machine.
        after_each: called with every job that is finished: at once if it was before, else when
            it ends; the others continue meanwhile.

    Returns:
        The error messages of failed jobs, by key.
    """
    unfinished = {j.key: j for j in jobs if j.done(root) < 1}
    console.print(
        f"{len({j.key for j in jobs})} runs, {len(unfinished)} of them to train", highlight=False
    )
    if after_each is not None:
        for job in {j.key: j for j in jobs if j.key not in unfinished}.values():
            after_each(job)
    if not unfinished:
        return {}
    elsewhere = {
        key: holder
        for key, holder in holders(root / LEASES).items()
        if key in unfinished and not holder.gone
    }
    if elsewhere:
        console.print(
            f"{len(elsewhere)} of them have a lease of another study in this folder "
            f"({next(iter(elsewhere.values()))}): they are waited for, not trained twice",
            highlight=False,
            soft_wrap=True,
        )
    # what others train comes last, so that no worker waits for it before it must
    todo = sorted(unfinished.values(), key=lambda job: job.key in elsewhere)
    engine = engine or LocalEngine()
    try:
        return _perform(todo, root, console, engine, after_each)
    finally:
        engine.cancel()


def longest_first(jobs: Iterable[J]) -> list[J]:
    """Return jobs in the order that leaves the least idle time at the end."""
    return sorted(jobs, key=lambda job: -job.cost)


def _perform(
    todo: list[Job],
    root: Path,
    console: Console,
    engine: Engine,
    after_each: Callable[[Job], None] | None,
) -> dict[str, str]:
    display, watch = _Display(todo, root), StallWatch(root / LEASES)
    jobs = {job.key: job for job in todo}
    errors: dict[str, str] = {}
    for job in todo:
        engine.submit(job, root)
    next_tick = next_look = 0.0
    live = Live(display.group, console=console, refresh_per_second=4, transient=True)
    with live if console.is_terminal else nullcontext():
        while display.left():
            ended = engine.result(TICK)
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + TICK
                display.update(engine.progress())
            if now >= next_look:
                next_look = now + patience() / 6
                for key, holder in watch.stalled().items():
                    if key in jobs and key not in display.ended:
                        console.print(
                            f"{jobs[key].title}: no sign of life from {holder} for "
                            f"{holder.patience:g} s; another worker continues it",
                            highlight=False,
                            soft_wrap=True,
                        )
                        engine.submit(jobs[key], root)
            if ended is None or ended[0].key in display.ended:
                continue
            job, error = ended
            display.finish(job)
            if error is not None:
                errors[job.key] = error
                failed = Text.assemble(("failed", "red"), f" {job.title}: {error}")
                console.print(failed, soft_wrap=True)
                continue
            if not console.is_terminal:
                console.print(Text(f"done {job.title} ({display.left()} left)"))
            if after_each is not None:
                after_each(job)
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
            if job.key in self.ended:
                continue  # by another attempt
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
