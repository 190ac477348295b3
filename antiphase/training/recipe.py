"""A recipe: everything that makes a training run what it is, as plain fields.

A YAML file with comments, or Python. Every field can be set on the command line, and the resolved
recipe is stored with the run.
"""

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from antiphase.options import fitted

SCHEDULES = ("cosine", "linear", "wsd", "constant")
PRECISIONS = ("fp32", "bf16")
POLICIES = ("stop", "skip")


@dataclass(frozen=True)
class Recipe:
    """The fields of a run, with the paper's optimiser as the default."""

    # model
    size: str = "nano"
    attention: str = "diff_v1"
    attention_options: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)  # any other field of the config
    # task
    task: str = "needle"
    task_options: dict[str, Any] = field(default_factory=dict)
    # length of the run
    steps: int = 500
    batch_size: int = 32  # texts a step, over all processes
    accumulate: int = 1  # parts that a step's batch is cut into
    seed: int = 0
    # optimiser
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    clip: float = 1.0  # of the gradient's norm, 0 for none
    rank_penalty: float = 0.0  # on the mean effective rank of the noise maps, added to the loss
    # schedule
    schedule: str = "cosine"
    warmup: float = 0.05  # share of the steps, or a number of them
    final_lr: float = 0.04  # share of lr at the end
    decay: float = 0.2  # share of the steps after warm-up in which wsd comes down
    # how
    precision: str = "fp32"
    compile: bool = False
    checkpointing: bool = False
    threads: int | None = None
    # what is watched and kept
    log_every: int = 10
    evaluate_every: int = 100
    evaluate_examples: int = 256
    checkpoint_every: int = 100
    keep: int = 2  # checkpoints; one of them may be half written
    snapshots: list[int] = field(default_factory=list)  # steps whose maps are kept for the lab
    milestones: list[int] = field(default_factory=list)  # steps whose weights are; 0 is the start
    spike: float | None = None  # a gradient norm above this many times its running mean
    report: list[str] = field(default_factory=list)  # tensorboard, wandb: what the Trainer knows
    on_trouble: str = "stop"  # loss not finite, or a spike: stop, or skip the step

    def __post_init__(self) -> None:
        _check(self)

    def changed(self, **fields: Any) -> "Recipe":
        """Return the recipe with other fields; refuse one that does not exist."""
        known = [f.name for f in dataclasses.fields(self)]
        for name in fields:
            if name not in known:
                raise ValueError(
                    f"recipe: has no field {name!r}; its fields are {', '.join(known)}"
                )
        hints = get_type_hints(Recipe)
        return dataclasses.replace(self, **{k: fitted(k, v, hints[k]) for k, v in fields.items()})

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return dataclasses.asdict(self)

    def digest(self) -> str:
        """Return a short name of everything that decides the outcome."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:12]

    def as_yaml(self) -> str:
        """Return the recipe as YAML, to be loaded again."""
        return yaml.safe_dump(self.as_dict(), sort_keys=False)


def load_recipe(source: str) -> Recipe:
    """Return a recipe by a built-in's name or from a YAML file."""
    path = Path(source)
    if not path.is_file():
        if source not in built_in():
            raise ValueError(
                f"recipe: {source!r} is no file and no built-in; those are {', '.join(built_in())}"
            )
        path = Path(str(resources.files("antiphase.training") / "recipes" / f"{source}.yaml"))
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: is not YAML ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected fields and their values, got {type(found).__name__}")
    try:
        return Recipe().changed(**found)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def built_in() -> list[str]:
    """Return the names of the recipes that come with the package."""
    folder = resources.files("antiphase.training") / "recipes"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir())


def parse_setting(text: str) -> tuple[str, Any]:
    """Return the field and value of `name=value`, the value read as YAML; `a.b=c` sets inside."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--set: got {text!r}, expected NAME=VALUE")
    try:
        return name.strip(), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ValueError(f"--set: {text!r} cannot be read ({error})") from error


def apply_settings(recipe: Recipe, settings: list[str]) -> Recipe:
    """Return the recipe with `name=value` settings applied in order."""
    for text in settings:
        name, value = parse_setting(text)
        outer, dot, inner = name.partition(".")
        if dot:
            current = recipe.as_dict().get(outer)
            if not isinstance(current, dict):
                raise ValueError(f"--set: {outer!r} has no inner fields; got {text!r}")
            value = {**current, inner: value}
        recipe = recipe.changed(**{outer: value})
    return recipe


_LEAST = {
    "steps": 1,
    "batch_size": 1,
    "accumulate": 1,
    "log_every": 1,
    "evaluate_every": 1,
    "evaluate_examples": 1,
    "checkpoint_every": 1,
    "keep": 2,  # one counts while the next is written
    "threads": 1,
    "warmup": 0,
    "weight_decay": 0,
    "clip": 0,
    "rank_penalty": 0,
}


def _check(r: Recipe) -> None:
    for name, allowed in {
        "schedule": SCHEDULES,
        "precision": PRECISIONS,
        "on_trouble": POLICIES,
    }.items():
        if getattr(r, name) not in allowed:
            raise ValueError(f"{name}: got {getattr(r, name)!r}, allowed are {', '.join(allowed)}")
    for name, least in _LEAST.items():
        value = getattr(r, name)
        if value is not None and not (math.isfinite(value) and value >= least):
            raise ValueError(f"{name}: got {value!r}, expected at least {least}")
    for name in ("final_lr", "decay", "beta1", "beta2"):
        if not 0 <= getattr(r, name) <= 1:
            raise ValueError(f"{name}: got {getattr(r, name)}, expected 0 to 1")
    if not 0 < r.lr < math.inf:
        raise ValueError(f"lr: got {r.lr}, expected a number above 0")
    if r.spike is not None and r.spike <= 1:
        raise ValueError(f"spike: got {r.spike}, expected more than 1 times the running mean")
    if r.batch_size % r.accumulate:
        raise ValueError(
            f"accumulate: {r.accumulate} parts do not divide batch_size {r.batch_size}; change one"
        )
    if r.checkpoint_every % r.log_every:
        raise ValueError(
            f"checkpoint_every: {r.checkpoint_every} is no multiple of log_every {r.log_every}, so "
            "a resumed run would log other means; change one"
        )
