"""The trained models that tests share: named by what decides their outcome, trained once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphase.attention import mechanism
from antiphase.models import AntiphaseForCausalLM
from antiphase.tasks import task
from antiphase.training import Recipe, resume, train
from antiphase.training.callbacks import read_metrics
from antiphase.training.digests import short_digest
from antiphase.training.locks import exclusive_lock


@dataclass(frozen=True)
class Arm:
    """One kind of model in a test: a name for tables, and its recipe but for the seed."""

    name: str
    recipe: Recipe

    def job(self, seed: int) -> "Job":
        """Return the run of that seed."""
        return Job(self.recipe.changed(seed=seed))

    def settings(self, common: Recipe) -> str:
        """Return what its recipe has that the common one has not."""
        usual, mine = flat(common.as_dict()), flat(self.recipe.as_dict())
        return ", ".join(f"{k}={v}" for k, v in mine.items() if usual.get(k) != v)


@dataclass(frozen=True)
class Job:
    """One training run."""

    recipe: Recipe

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> str:
        """Return a name of everything that decides the outcome.

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

    def folder(self, root: Path) -> Path:
        """Return where the run is kept."""
        return root / self.key

    def finished(self, root: Path) -> bool:
        """Return whether it is there already."""
        return (self.folder(root) / "model" / "config.json").is_file()

    @property
    def cost(self) -> float:
        """Return the tokens it reads."""
        length = int(self.recipe.task_options.get("length", 64))
        return float(self.recipe.steps * self.recipe.batch_size * length)

    def done(self, root: Path) -> float:
        """Return the share that is done; 1 when the model is there."""
        if self.finished(root):
            return 1.0
        lines = read_metrics(self.folder(root))
        return min(lines[-1]["step"] / self.recipe.steps, 0.999) if lines else 0.0

    def perform(self, root: Path) -> None:
        """Train it, go on with it, or do nothing if it is finished; never twice at once."""
        folder = self.folder(root)
        with exclusive_lock(root / f"{self.key}.lock"):
            if not (folder / "recipe.yaml").is_file():
                train(self.recipe, folder, force=True, quiet=True)
            else:
                resume(folder, quiet=True)


def flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Return options one level down under names like `task_options.length`."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        parts = value if isinstance(value, dict) else None
        found |= {name: value} if parts is None else {f"{name}.{k}": v for k, v in parts.items()}
    return found


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    job: Job
    folder: Path

    def model(self, step: int | None = None) -> AntiphaseForCausalLM:
        """Return the model, at its end or at a milestone."""
        path = self.folder / ("model" if step is None else f"milestones/step{step}")
        return AntiphaseForCausalLM.from_pretrained(path).eval()

    def held_out(self, size: int, split: str = "test", **changes: Any) -> Any:
        """Return unseen examples of the run's task, or of the same with other options."""
        recipe = self.job.recipe
        options = {**recipe.task_options, **changes}
        return task(recipe.task)(split=split, size=size, seed=recipe.seed, **options)
