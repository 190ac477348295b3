"""A study that is killed again and again; `test_killed_study.py` runs it in a process of its own.

The process imports everything once and forks a child for each attempt, before any thread exists.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from antiphase.experiments import model_measurements, study, tuning
from antiphase.experiments.grids import Grid
from antiphase.experiments.registry import EXPERIMENTS, RegisteredTest
from tests.experiments.small import SMALL, InProcess

TESTS = (
    RegisteredTest(97, "One arm", "?", "tests.experiments.small:OneArmTest"),
    RegisteredTest(98, "Two arms", "?", "tests.experiments.small:TwoArmsTest"),
)
PLAN = replace(SMALL, id="killed", tests=(97, 98), grid=Grid(steps=4, extensions=0))
# When each attempt is killed: before a file or folder gets its final name, counted from the start
# of the attempt, or before the nth call of a function of the study
MOMENTS: tuple[int | tuple[str, int], ...] = (
    1,
    13,
    19,
    ("train_all", 1),  # between tuning and training
    9,
    24,
    ("_run", 1),  # between training and measuring
    ("_run", 2),  # between two tests
    ("training_tables", 1),
)


def run(folder: Path) -> None:
    """Run the study."""
    model_measurements.EXAMPLES, model_measurements.SEQUENCES = 8, 6
    tuning.SQUARE = ((0, 0), (1, 0), (0, 1))
    EXPERIMENTS.clear()  # of this process
    EXPERIMENTS.update({test.number: test for test in TESTS})
    found = study.run_study(PLAN, TESTS, folder, Console(quiet=True), engine=InProcess())
    found.save(folder)


def die_at(moment: int | tuple[str, int]) -> None:
    """Let this process kill itself at a moment."""
    calls = iter(range(1, 1_000_000))

    def counted(function: Callable[..., Any], until: int) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == until:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    if isinstance(moment, int):
        os.replace, os.rename = counted(os.replace, moment), counted(os.rename, moment)
    else:
        name, until = moment
        setattr(study, name, counted(getattr(study, name), until))


def attempt(folder: Path, moment: int | tuple[str, int] | None) -> None:
    """Run the study in a child that is killed at a moment, or not at all."""
    pid = os.fork()
    if pid == 0:
        try:
            if moment is not None:
                die_at(moment)
            run(folder)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert status == (0 if moment is None else signal.SIGKILL), f"{moment}: status {status}"


def finished(folder: Path) -> dict[str, int]:
    """Return what is finished, and when it was written."""
    models = folder.glob("trained/*/model/model.safetensors")
    measured = folder.glob("measured/*.json")
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in (*models, *measured)}


if __name__ == "__main__":
    whole, killed, log = (Path(argument) for argument in sys.argv[1:])
    attempt(whole, None)
    seen = []
    for moment in (*MOMENTS, None):
        attempt(killed, moment)
        seen.append(finished(killed))
    log.write_text(json.dumps(seen))
