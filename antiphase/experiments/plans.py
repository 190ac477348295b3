"""Plans: what a study trains, on which seeds, and whether it needs a lock.

- QUICK: `antiphase lab`, minutes; three seeds and no tuning, so it is exploratory.
- PRIMARY: `antiphase lab --full`, hours; its predictions are locked before its first run.
- SYNTHETIC: `antiphase lab --study synthetic`, hours; other tests on the same recipe, follow-ups
  on some of PRIMARY's, and other synthetic tasks; locked.
- REPLICATION: `antiphase lab --study replication`, the primary study with twice the heads of half
  the width.
- LADDER_NANO, LADDER_MICRO, LADDER_MINI: `antiphase lab --study ladder-nano`, text at three sizes,
  many hours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphase.experiments import registry
from antiphase.experiments.conditions import SYNTHETIC_STRESS, UNANSWERABLE_STRESS
from antiphase.experiments.grids import FullLengthGrid, Grid, MeasuredGrid, SharedGrid
from antiphase.experiments.registry import EXPERIMENTS, RegisteredTest, tests_of
from antiphase.training import Recipe, load_recipe


@dataclass(frozen=True)
class Plan:
    """What all arms of a study share, and how it is run.

    Attributes:
        id: name of the study; its lock belongs to it.
        recipe: what all arms share, except for the seed and what tuning chooses.
        tests: numbers of the tests.
        seeds: of the study's runs, which no other study and no tuning uses.
        grid: how arms are tuned; None for the recipe's learning rate and branch scale.
        locked: whether the study refuses to start without a lock.
        kept: folder of the repository with its lock and its finished runs; None if it has none.
    """

    id: str
    recipe: Recipe
    tests: tuple[int, ...]
    seeds: tuple[int, ...]
    grid: Grid | None = None
    locked: bool = False
    kept: Path | None = None

    @property
    def on_text(self) -> bool:
        """Return whether its models are trained on text, where no answer has a known place."""
        return self.recipe.task == "language"


_KEPT = Path("docs/results")
_RECIPE = load_recipe("needle-lab")
_EASIER = {"length": 64, "keys": 8, "repeats": 3}
QUICK = Plan(
    registry.QUICK,
    _RECIPE.changed(
        task_options={**_RECIPE.task_options, **_EASIER},
        batch_size=32,
        steps=700,
        decay=0.231,  # 150 steps
    ),
    tests_of(registry.QUICK),
    (0, 1, 2),
)
PRIMARY = Plan(
    registry.PRIMARY,
    _RECIPE,
    tests_of(registry.PRIMARY),
    tuple(range(100, 108)),
    Grid(steps=400),
    locked=True,
    kept=_KEPT / "lab",
)
SYNTHETIC = Plan(
    registry.SYNTHETIC,
    _RECIPE.changed(precision="bf16"),  # half the CPU time; PRIMARY was trained in fp32
    tests_of(registry.SYNTHETIC),
    tuple(range(400, 424)),
    MeasuredGrid(
        lr=5e-4,
        seeds=(930, 938),
        conditions={"needle": SYNTHETIC_STRESS, "unanswerable": UNANSWERABLE_STRESS},
        confirming_seeds=(936, 937, 939, 940),  # one setting has 0.2 to 0.7 nats with three seeds
    ),
    locked=True,
    kept=_KEPT / "synthetic",
)
REPLICATION = Plan(
    registry.REPLICATION,
    _RECIPE.changed(model={**_RECIPE.model, "num_attention_heads": 16}),  # 8 of V1
    tests_of(registry.REPLICATION),
    tuple(range(110, 118)),
    Grid(steps=400, seeds=(901,)),
    locked=True,
    kept=_KEPT / "replication",
)
LADDER_NANO = Plan(
    registry.LADDER_NANO,
    load_recipe("prose-nano"),
    tests_of(registry.LADDER_NANO),
    tuple(range(220, 225)),
    # after 180 steps, standard attention hardly attends
    FullLengthGrid(lr=4e-3, steps=360, seeds=(914,), full_seeds=(915,)),
    locked=True,
    kept=_KEPT / "ladder/nano",
)
LADDER_MICRO = Plan(
    registry.LADDER_MICRO,
    load_recipe("prose-micro"),
    tests_of(registry.LADDER_MICRO),
    tuple(range(300, 303)),
    SharedGrid(
        lr=4e-3,
        steps=360,
        seeds=(920,),
        full_seeds=(921,),
        same_as={  # other numbers of heads
            "V1, 2 heads": "V1",
            "V1, 8 heads": "V1",
            "standard, 4 heads": "standard",
            "standard, 16 heads": "standard",
        },
    ),
    locked=True,
    kept=_KEPT / "ladder/micro",
)
LADDER_MINI = Plan(
    registry.LADDER_MINI,
    load_recipe("prose-micro").changed(size="mini"),
    tests_of(registry.LADDER_MINI),
    (310,),  # descriptive: an epoch of three arms takes most of a day
    Grid(lr=2e-3, steps=180, seeds=(922,)),
    locked=True,
    kept=_KEPT / "ladder/mini",
)
PLANS = {
    plan.id: plan
    for plan in (QUICK, PRIMARY, SYNTHETIC, REPLICATION, LADDER_NANO, LADDER_MICRO, LADDER_MINI)
}


def select_tests(plan: Plan, numbers: Sequence[int] | None = None) -> list[RegisteredTest]:
    """Return the tests that a study runs.

    Args:
        plan: of the study.
        numbers: these alone; None for all of the plan. The quick study runs any test of retrieval
            that is asked for.

    Raises:
        ValueError: there is no test of that number, or it is not part of the study.
    """
    allowed = [*plan.tests]
    if plan.id == QUICK.id:
        allowed = [n for n, test in EXPERIMENTS.items() if not test.text]
    for number in numbers or []:
        if number not in EXPERIMENTS:
            raise ValueError(
                f"--only: got {number}, the tests are {', '.join(map(str, EXPERIMENTS))}"
            )
        if number not in allowed:
            others = [p.id for p in PLANS.values() if number in p.tests]
            raise ValueError(
                f"--only: test {number} is not part of the study {plan.id!r}, whose tests are "
                f"{', '.join(map(str, allowed))}; "
                + (f"it is of --study {' or '.join(others)}" if others else "leave out --study")
            )
    return [EXPERIMENTS[n] for n in sorted(set(numbers or plan.tests))]


def lab_command(study_id: str) -> str:
    """Return the command that runs a study."""
    if study_id == PRIMARY.id:
        return "antiphase lab --full"
    locked = study_id in PLANS and PLANS[study_id].locked
    return f"antiphase lab --study {study_id}" if locked else "antiphase lab"
