"""A recipe: everything that makes a training run what it is, as plain fields.

A YAML file with comments, or Python. Every field can be set on the command line, and the resolved
recipe is stored with the run.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

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
    # schedule
    schedule: str = "cosine"
    warmup: float = 0.05  # share of the steps, or a number of them
    final_lr: float = 0.04  # share of lr at the end
    decay: float = 0.2  # share of the steps in which wsd comes down
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
        return dataclasses.replace(self, **{k: _number(v) for k, v in fields.items()})

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return dataclasses.asdict(self)

    def digest(self) -> str:
        """Return a short name of everything that decides the outcome."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:12]

    def as_yaml(self) -> str:
        """Return the recipe as YAML, to be loaded again."""
        return yaml.safe_dump(self.as_dict(), sort_keys=False)


def _number(value: Any) -> Any:
    """Return `1e-3` as the number that YAML does not see in it without a dot."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


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
    return name.strip(), yaml.safe_load(value)


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


def _check(r: Recipe) -> None:
    for name, allowed in {
        "schedule": SCHEDULES,
        "precision": PRECISIONS,
        "on_trouble": POLICIES,
    }.items():
        if getattr(r, name) not in allowed:
            raise ValueError(f"{name}: got {getattr(r, name)!r}, allowed are {', '.join(allowed)}")
    for f in dataclasses.fields(r):
        value, default = getattr(r, f.name), f.default
        number = isinstance(default, (int, float)) and not isinstance(default, bool)
        if number and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ValueError(f"{f.name}: got {value!r}, expected a number")
        if isinstance(default, bool) and not isinstance(value, bool):
            raise ValueError(f"{f.name}: got {value!r}, expected true or false")
    for name in ("steps", "batch_size", "accumulate", "log_every", "checkpoint_every", "keep"):
        value = getattr(r, name)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: got {value!r}, expected a whole number of at least 1")
    if r.keep < 2:
        raise ValueError(
            f"keep: got {r.keep}, expected at least 2: one counts while the next is written"
        )
    if r.lr <= 0 or not 0 <= r.final_lr <= 1 or not 0 <= r.decay <= 1:
        raise ValueError(
            f"lr, final_lr, decay: got {r.lr}, {r.final_lr}, {r.decay}, expected lr above 0 and "
            "shares from 0 to 1"
        )
    if r.batch_size % r.accumulate:
        raise ValueError(
            f"accumulate: {r.accumulate} parts do not divide batch_size {r.batch_size}; change one"
        )
    if r.checkpoint_every % r.log_every:
        raise ValueError(
            f"checkpoint_every: {r.checkpoint_every} is no multiple of log_every {r.log_every}, so "
            "a resumed run would log other means; change one"
        )
