"""What an engine costs: Ray against the local pool, and the cost of a job as their number grows.

    python docs/cluster_costs.py overhead --runs 16 --steps 300 --rounds 3
    python docs/cluster_costs.py growth --engine local --jobs 100 1000 10000
    python docs/cluster_costs.py growth --engine ray --jobs 100 1000 10000

`overhead` trains the same nano runs on both engines, in turns, and compares the wall time after
start-up (each worker has imported PyTorch); it needs cores without other load. `growth` gives jobs
without work to an engine and prints the CPU time per job: of this process, and of all processes
that the engine has started. Ray is started on this machine, with one CPU per core.
"""

import argparse
import io
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from antiphase.experiments.engine import Engine, Job, Resources, cores
from antiphase.experiments.local_pool import LocalEngine
from antiphase.experiments.ray_engine import RayEngine
from antiphase.experiments.train_all import train_all
from antiphase.markdown import markdown_table

ENGINES: dict[str, Callable[[], Engine]] = {"local": LocalEngine, "ray": lambda: RayEngine("local")}


@dataclass(frozen=True)
class Nothing:
    """A job without work: it writes an empty file."""

    key: str

    @property
    def title(self) -> str:
        """Return its name."""
        return self.key

    @property
    def cost(self) -> float:
        """Return the same for all."""
        return 1.0

    @property
    def resources(self) -> Resources:
        """Return one core."""
        return Resources()

    def folder(self, root: Path) -> Path:
        """Return the path of its file."""
        return root / self.key

    def done(self, root: Path) -> float:
        """Return whether the file exists."""
        return float(self.folder(root).exists())

    def perform(self, root: Path) -> None:
        """Write the file."""
        self.folder(root).touch()


def growth(engine: str, counts: Sequence[int]) -> str:
    """Return a table of the CPU time per job, for each number of jobs."""
    rows = []
    chosen = ENGINES[engine]()
    for count in (10, *counts):  # the first one warms up
        folder = Path(tempfile.mkdtemp())
        before, others_before = time.process_time(), _cpu_of_others()
        errors = train_all(
            [Nothing(f"job-{i}") for i in range(count)], folder, Console(file=io.StringIO()), chosen
        )
        own = time.process_time() - before
        others = max(0.0, _cpu_of_others() - others_before)
        assert not errors
        assert len(list(folder.iterdir())) == count
        shutil.rmtree(folder)
        per_job = [f"{1000 * seconds / count:.2f}" for seconds in (own, others)]
        rows.append([engine, f"{count:,}", *per_job])
    head = ["engine", "jobs", "this process, ms of CPU per job", "all others, ms of CPU per job"]
    return markdown_table(head, rows[1:])


def _cpu_of_others() -> float:
    """Return the CPU time of all processes below this one, ended ones included."""
    children: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        process = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(process)
        seconds[process] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    found, todo = 0.0, list(children.get(os.getpid(), []))
    while todo:
        process = todo.pop()
        found += seconds[process]
        todo += children.get(process, [])
    ended = os.times()
    return found + ended.children_user + ended.children_system


def overhead(runs: int, steps: int, rounds: int) -> str:
    """Return a table of wall times: the same runs on both engines, in turns."""
    from antiphase.experiments.arms import TrainingRun
    from antiphase.training import load_recipe

    recipe = load_recipe("needle-nano").changed(threads=1)
    short = recipe.changed(steps=1, warmup=0, evaluate_examples=1)
    seconds: dict[str, list[float]] = {name: [] for name in ENGINES}
    for round_ in range(rounds):
        for name, start in ENGINES.items():
            root, engine = Path(tempfile.mkdtemp()), start()
            warm_up = [TrainingRun(short.changed(seed=seed)) for seed in range(2 * engine.workers)]
            _perform(engine, warm_up, root)
            jobs = [TrainingRun(recipe.changed(steps=steps, seed=seed)) for seed in range(runs)]
            seconds[name].append(_perform(engine, jobs, root))
            engine.cancel()
            shutil.rmtree(root)
            print(f"round {round_}: {name} {seconds[name][-1]:.2f} s", flush=True)
    ratios = [ray / local for local, ray in zip(seconds["local"], seconds["ray"], strict=True)]
    rows = [[name, f"{statistics.median(found):.2f}"] for name, found in seconds.items()]
    rows.append(["ray / local, median of rounds", f"{statistics.median(ratios):.3f}"])
    title = f"{runs} nano runs of {steps} steps, {cores()} cores"
    return markdown_table([title, "seconds of wall time"], rows)


def _perform(engine: Engine, jobs: Sequence[Job], root: Path) -> float:
    """Perform jobs; return the seconds that they took."""
    begin = time.perf_counter()
    for job in jobs:
        engine.submit(job, root)
    left = len(jobs)
    while left:
        ended = engine.result(1.0)
        if ended is not None:
            assert ended[1] is None, ended[1]
            left -= 1
    return time.perf_counter() - begin


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    compared = commands.add_parser("overhead")
    compared.add_argument("--runs", type=int, default=16)
    compared.add_argument("--steps", type=int, default=300)
    compared.add_argument("--rounds", type=int, default=3)
    grown = commands.add_parser("growth")
    grown.add_argument("--engine", choices=ENGINES, default="ray")
    grown.add_argument("--jobs", type=int, nargs="+", default=[100, 1000, 10_000])
    given = parser.parse_args()
    if given.command == "growth":
        print(growth(given.engine, given.jobs))
    else:
        print(overhead(given.runs, given.steps, given.rounds))
