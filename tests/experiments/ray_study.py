"""Studies that `test_ray.py` runs in processes of their own: a lab of seconds, and jobs of stubs.

python -m tests.experiments.ray_study lab FOLDER [ADDRESS]
python -m tests.experiments.ray_study stubs FOLDER ADDRESS
"""

import sys
from pathlib import Path

from tests.experiments.stub_jobs import StubJob


def stubs() -> list[StubJob]:
    """Return jobs that take some seconds together."""
    return [StubJob(str(number), steps=10, seconds=0.3) for number in range(6)]


def run_stubs(folder: Path, address: str) -> int:
    from rich.console import Console

    from antiphase.experiments.ray_engine import RayEngine
    from antiphase.experiments.train_all import train_all

    try:
        return len(train_all(stubs(), folder, Console(width=300), RayEngine(address)))
    except OSError as error:  # as the command line does it
        print(error, flush=True)
        return 2


def run_lab(folder: Path, address: str | None) -> None:
    """Run `antiphase lab --only 1,5` with the plan of the tests."""
    from antiphase.cli.app import app
    from antiphase.experiments import model_measurements, plans
    from tests.experiments.small import RECIPE, SMALL

    model_measurements.EXAMPLES, model_measurements.SEQUENCES = 8, 6
    longer = RECIPE.changed(steps=24, threads=1)
    plans.QUICK = plans.Plan(SMALL.id, longer, SMALL.tests, SMALL.seeds)
    engine = ["--engine", "ray", "--address", address] if address else []
    app(["lab", "--only", "1,5", "--out", str(folder), *engine])


if __name__ == "__main__":
    what, folder, *address = sys.argv[1:]
    if what == "stubs":
        sys.exit(run_stubs(Path(folder), *address))
    run_lab(Path(folder), *(address or [None]))
