"""Arms: the kinds of models that tests compare, and the training runs that make them.

An arm says what is special about a kind of model; the plan of a study says what all share (task,
sizes, budget) and tuning adds the learning rate and the branch scale that suit the arm. A run is
named by everything that decides its outcome, so tests share runs and none is repeated.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from antiphase.attention import mechanism
from antiphase.experiments.engine import Resources
from antiphase.experiments.leases import LEASES, lease
from antiphase.tasks import Language, task
from antiphase.training import Recipe, resume, train
from antiphase.training.callbacks import read_metrics
from antiphase.training.digests import short_digest
from antiphase.training.run import LOCK

GPU_FRACTIONS = {"nano": 0.125, "micro": 0.25, "mini": 0.5}
"""How much of a GPU a run of a preset gets on a cluster with GPUs; a complete one by default."""


@dataclass(frozen=True)
class Arm:
    """One kind of model in a test.

    Attributes:
        name: in tables and effects; two arms of a study never share a name.
        attention: the mechanism.
        options: of the mechanism.
        changes: other fields of the recipe that this arm changes; of `model`, the given fields.
        sweep: options of the mechanism that tuning chooses, with the values to try.
    """

    name: str
    attention: str
    options: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    sweep: dict[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """What tuning chooses for an arm.

    Attributes:
        lr: peak learning rate.
        branch_scale: of the initialisation.
        options: of the mechanism.
    """

    lr: float
    branch_scale: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        options = "".join(f", {name}={value}" for name, value in self.options.items())
        return f"lr {self.lr:g}, branch scale {self.branch_scale:g}{options}"


def arm_recipe(shared: Recipe, arm: Arm, settings: Settings) -> Recipe:
    """Return the recipe of an arm, except for the seed.

    Args:
        shared: what all arms of the study share.
        arm: and its changes.
        settings: chosen for the arm.
    """
    model = {**shared.model, "branch_scale": settings.branch_scale, **arm.changes.get("model", {})}
    if model.get("initialisation") == "published":
        model = {k: v for k, v in model.items() if k not in ("branch_scale", "query_key_std")}
    return shared.changed(
        **{
            "attention": arm.attention,
            "attention_options": {**arm.options, **settings.options},
            "lr": settings.lr,
            **arm.changes,
            "model": model,
        }
    )


@dataclass(frozen=True)
class TrainingRun:
    """One training run, as a `Job` for the engine."""

    locks: ClassVar[tuple[str, ...]] = (LOCK,)  # of a run's folder, while it is trained
    recipe: Recipe

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_property
    def key(self) -> str:
        """Return a name made of everything that decides the outcome.

        The versions of mechanism and task are raised by hand when their meaning changes.
        """
        examples = Language if self.recipe.task == Language.name else task(self.recipe.task)
        versions = [mechanism(self.recipe.attention).version, examples.version]
        digest = short_digest([self.recipe.as_dict(), versions])
        return f"{self.recipe.task}-{self.recipe.variant}-{self.recipe.seed}-{digest}"

    @property
    def title(self) -> str:
        """Return a few words for people."""
        options = ", ".join(f"{k}={v}" for k, v in self.recipe.attention_options.items())
        what = f"{self.recipe.attention}({options})" if options else self.recipe.attention
        return f"{self.recipe.task}, {what}, seed {self.recipe.seed}"

    @property
    def cost(self) -> float:
        """Return the number of training tokens; the largest possible, if a criterion may end it."""
        length = int(self.recipe.task_options.get("length", 64))
        return float(self.recipe.steps * self.recipe.batch_size * length)

    @property
    def resources(self) -> Resources:
        """Return what it needs while it runs, by its threads and its preset."""
        return Resources(self.recipe.threads or 1, GPU_FRACTIONS.get(self.recipe.size, 1.0))

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
        with lease(root / LEASES, self.key) as from_a_holder_that_hangs:
            if from_a_holder_that_hangs:  # and with it, the lock of the folder
                for name in self.locks:
                    (folder / name).unlink(missing_ok=True)
            if not (folder / "recipe.yaml").is_file():
                shutil.rmtree(folder, ignore_errors=True)  # of a run killed before it began
            self.train_or_resume(root)

    def train_or_resume(self, root: Path) -> None:
        """Do the work, in this process alone; the folder is absent, or holds this run."""
        folder = self.folder(root)
        if (folder / "recipe.yaml").is_file():
            resume(folder, quiet=True)
        else:
            train(self.recipe, folder, quiet=True)


STANDARD = Arm("standard", "standard")
V1 = Arm("V1", "diff_v1")
V2 = Arm("V2", "diff_v2")
STANDARD_NORM = Arm("standard + head norm", "standard", {"head_norm": "rms"})
V1_NO_NORM = Arm("V1 without head norm", "diff_v1", {"head_norm": "none"})
SIGNED_MASK = Arm("signed mask", "signed_mask")
TOP_K = Arm("top-k", "top_k", sweep={"k": (4, 8, 16, 32)})
TOP_16 = Arm("top-k, k = 16", "top_k", {"k": 16})  # tuning of the primary study chose this k
GATED = Arm("gated", "gated")
RECTIFIED = Arm("rectified", "rectified")
SIMPLEX = Arm("simplex", "simplex")
FOREIGN_NOISE = Arm("foreign noise", "foreign_noise")
LOW_RANK_NOISE = Arm("low-rank noise", "low_rank_noise")


def on_task(what: str, arms: Sequence[Arm], changes: dict[str, Any]) -> dict[str, Arm]:
    """Return arms that are trained on another task than the study's, by their usual names.

    Args:
        what: the task, in the names of the new arms.
        arms: without changes of their own.
        changes: `task`, `task_options` and other fields of the recipe.
    """
    return {arm.name: replace(arm, name=f"{arm.name} ({what})", changes=changes) for arm in arms}


def is_standard(arm: Arm) -> bool:
    """Return whether an arm is standard attention as it is, on whatever task."""
    return arm.attention == STANDARD.attention and not arm.options
