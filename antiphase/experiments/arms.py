"""Arms: the kinds of models that tests compare, and the training runs that make them.

A run is named by everything that decides its outcome, so tests share runs and none is repeated.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphase.analysis.compare_runs import flat_fields
from antiphase.attention import mechanism
from antiphase.tasks import task
from antiphase.training import Recipe, load_recipe, resume, train
from antiphase.training.callbacks import read_metrics
from antiphase.training.digests import short_digest
from antiphase.training.locks import exclusive_lock

SEEDS = (0, 1, 2)
MILESTONES = [0, 100, 200, 300, 400, 500, 600, 700]


@dataclass(frozen=True)
class Arm:
    """One kind of model in a test: a name for tables, and its recipe except for the seed."""

    name: str
    recipe: Recipe

    def training_run(self, seed: int) -> "TrainingRun":
        """Return the run of that seed."""
        return TrainingRun(self.recipe.changed(seed=seed))

    def changes(self, common: Recipe) -> str:
        """Return the fields in which the arm's recipe differs from the common one."""
        usual, mine = flat_fields(common.as_dict()), flat_fields(self.recipe.as_dict())
        return ", ".join(f"{k}={v}" for k, v in mine.items() if usual.get(k) != v)


@dataclass(frozen=True)
class TrainingRun:
    """One training run, as a `Job` for the engine."""

    recipe: Recipe

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> str:
        """Return a name made of everything that decides the outcome.

        The versions of mechanism and task are raised by hand when their meaning changes.
        """
        versions = [mechanism(self.recipe.attention).version, task(self.recipe.task).version]
        digest = short_digest([self.recipe.as_dict(), versions])
        return f"{self.recipe.task}-{self.recipe.attention}-{self.recipe.seed}-{digest}"

    @property
    def title(self) -> str:
        """Return a few words for people."""
        options = ", ".join(f"{k}={v}" for k, v in self.recipe.attention_options.items())
        what = f"{self.recipe.attention}({options})" if options else self.recipe.attention
        return f"{self.recipe.task}, {what}, seed {self.recipe.seed}"

    @property
    def cost(self) -> float:
        """Return the number of training tokens."""
        length = int(self.recipe.task_options.get("length", 64))
        return float(self.recipe.steps * self.recipe.batch_size * length)

    def folder(self, root: Path) -> Path:
        """Return the run's folder under the root of all runs."""
        return root / self.key

    def finished(self, root: Path) -> bool:
        """Return whether the trained model exists."""
        return (self.folder(root) / "model" / "config.json").is_file()

    def done(self, root: Path) -> float:
        """Return the fraction that is done; 1 when the model exists."""
        if self.finished(root):
            return 1.0
        lines = read_metrics(self.folder(root))
        return min(lines[-1]["step"] / self.recipe.steps, 0.999) if lines else 0.0

    def perform(self, root: Path) -> None:
        """Train, resume, or do nothing if it is finished; never twice at once."""
        folder = self.folder(root)
        with exclusive_lock(root / f"{self.key}.lock"):
            if not (folder / "recipe.yaml").is_file():
                train(self.recipe, folder, force=True, quiet=True)
            else:
                resume(folder, quiet=True)


def base_recipe(attention: str, length: int = 64, **changes: Any) -> Recipe:
    """Return the recipe that all arms share, for a mechanism and a sequence length.

    A longer sequence keeps the tokens per step, and needles repeat as often per token, so that the
    number of questions per step stays the same.
    """
    recipe = load_recipe("needle-nano")
    options = {**recipe.task_options, "length": length, "repeats": length // 16 - 1}
    return recipe.changed(
        attention=attention,
        task_options=options,
        batch_size=recipe.batch_size * 64 // length,
        steps=700,
        threads=1,
        evaluate_every=100,
        checkpoint_every=350,
    ).changed(**changes)


COMMON = base_recipe("standard", milestones=MILESTONES)
STANDARD = Arm("standard", COMMON)
V1 = Arm("V1", base_recipe("diff_v1", milestones=MILESTONES))
V2 = Arm("V2", base_recipe("diff_v2", milestones=MILESTONES))
