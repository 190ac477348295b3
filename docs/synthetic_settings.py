"""Standard attention alone on the tasks of the study `synthetic`, to be run before its lock.

    python docs/synthetic_settings.py                    # tests 10, 16 and 17 on seeds 931 and 932
    python docs/synthetic_settings.py --tests 10 --seeds 931

A prediction can only be judged if models learn the task (0.99 in the training condition), if the
measured condition leaves room (an error of twice the size that counts), and for cancelling if there
is attention noise (retrieval heads with 0.2 to 0.6 of their mass on irrelevant tokens). Settings
are chosen on standard attention, on seeds that no study uses, at most 12 of them, and then locked.
This prints these numbers for the settings that the tests have, at the centre of the tuning grid;
change the options in `e10_caution.py`, `e16_order.py` or `e17_multi_needle.py` and run it again.
Every setting that was tried belongs into docs/log.md.
"""

import argparse
from pathlib import Path

from rich.console import Console

from antiphase.experiments.arms import Settings, TrainingRun, arm_recipe, is_standard
from antiphase.experiments.e10_caution import outcome
from antiphase.experiments.e16_order import sensitivity
from antiphase.experiments.model_measurements import accuracy, mass
from antiphase.experiments.plans import SYNTHETIC
from antiphase.experiments.registry import EXPERIMENTS
from antiphase.experiments.train_all import train_all
from antiphase.experiments.trained_models import TrainedModel
from antiphase.training import criterion_of

TESTS, SEEDS = (10, 16, 17), (931, 932)
assert SYNTHETIC.grid is not None
LR = SYNTHETIC.grid.lr


def run_of(number: int, seed: int) -> TrainingRun:
    """Return the run of a test's standard attention."""
    arm = next(arm for arm in EXPERIMENTS[number].load().arms if is_standard(arm))
    return TrainingRun(arm_recipe(SYNTHETIC.recipe, arm, Settings(LR)).changed(seed=seed))


def lines(number: int, run: TrainingRun, root: Path) -> list[str]:
    """Return what was measured, one line per condition of the test."""
    model = TrainedModel("standard", run, run.folder(root))
    found = [
        f"accuracy {accuracy(model, condition).mean():.3f}, mass on irrelevant tokens "
        f"{mass(model, 'irrelevant', condition).mean():.2f}  {condition.name}"
        for condition in EXPERIMENTS[number].load().conditions
    ]
    if number == 10:
        answered = outcome(model, "hallucinated", equal_refusals=True).mean()
        found.append(f"answers to unanswerable questions at equal refusals {answered:.3f}")
    if number == 16:
        found.append(f"sensitivity to the order {sensitivity(model).mean():.3f}")
    return found


def main() -> None:
    """Train what is missing, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tests", type=int, nargs="+", default=TESTS, choices=TESTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--out", type=Path, default=Path("runs/synthetic-settings"))
    options = parser.parse_args()
    jobs = [(number, run_of(number, s)) for number in options.tests for s in options.seeds]
    errors = train_all([run for _, run in jobs], options.out, Console())
    for number, run in jobs:
        outcome_of_run = criterion_of(run.folder(options.out)) or "no criterion"
        print(f"\ntest {number}, {run.title}: {errors.get(run.key, outcome_of_run)}")
        if run.key not in errors:
            print(*(f"  {line}" for line in lines(number, run, options.out)), sep="\n")


if __name__ == "__main__":
    main()
