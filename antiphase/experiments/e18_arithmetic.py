"""Test 18: values through chains of assignments, among other chains of the same form."""

from antiphase.experiments.arms import FOREIGN_NOISE, STANDARD, V1, V2, on_task
from antiphase.experiments.conditions import AS_TRAINED, ChangedTask
from antiphase.experiments.contests import accuracy_chart, compare, noise_contests, noise_pairs
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.trained_models import TrainedModels
from antiphase.tasks.arithmetic import ArithmeticOptions

STEPS, OTHERS, VARIABLES = 2, 2, 16


def _task_options(steps: int, others: int, asked: int) -> dict[str, int]:
    """Return options whose sequences are as long as their content."""
    fields = {"steps": steps, "others": others, "asked": asked, "variables": VARIABLES}
    needed = ArithmeticOptions(length=1000, **fields).needed
    return {**fields, "length": needed, "modulus": 5}


def _chains(name: str, steps: int, others: int) -> ChangedTask:
    return ChangedTask(name, options=tuple(_task_options(steps, others, asked=1).items()))


ARITHMETIC = {
    "task": "arithmetic",
    # every variable is asked for: half of the questions only need its number, so the first step of
    # a chain is learned before the addition
    "task_options": _task_options(STEPS, OTHERS, asked=STEPS * (1 + OTHERS)),
    # find the number of y, add, find the sum: more layers than retrieval needs
    "model": {"num_hidden_layers": 4},
    "steps": 3000,
}
ARMS = on_task("arithmetic", (STANDARD, V1, V2, FOREIGN_NOISE), ARITHMETIC)
DISTRACTORS = {n: _chains(f"{n} other chains", STEPS, n) for n in (2, 4, 6)}
STRESS = DISTRACTORS[6]
LONGER = _chains(f"chains of {STEPS + 1} steps", STEPS + 1, OTHERS)


class ArithmeticTest(Experiment):
    """Accuracy as the number of other chains grows."""

    arms = tuple(ARMS.values())
    conditions = (AS_TRAINED, *DISTRACTORS.values(), LONGER)
    predictions = noise_contests(ARMS, STRESS, "the numbers of other chains are noise")

    def measure(self, models: TrainedModels) -> Measurement:
        found = compare(
            models, self.arms, noise_pairs(ARMS), conditions=self.conditions, stress=STRESS
        )
        title = "Accuracy by number of other chains"
        found.figures.append(accuracy_chart(title, "other chains", models, self.arms, DISTRACTORS))
        return found
