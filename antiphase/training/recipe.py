"""A recipe: everything that decides the outcome of a training run, as plain fields.

A YAML file with comments, or Python. Every field can be set on the command line, and the resolved
recipe is stored with the run.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from antiphase.options import fitted, nearest
from antiphase.pretrained.methods import method_options
from antiphase.training.digests import short_digest

SCHEDULES = ("cosine", "linear", "wsd", "constant")
PRECISIONS = ("fp32", "bf16")
POLICIES = ("stop", "skip")
RENAMED = {"on_trouble": "on_divergence"}  # old names in the recipe.yaml of existing runs


@dataclass(frozen=True)
class Recipe:
    """The fields of a run, with the paper's optimiser as the default.

    A run trains a new model (`size`, `attention`, `attention_options`, `model`), or a pretrained
    one (`start`, `method`, `method_options`).
    """

    # a new model
    size: str = "nano"
    attention: str = "diff_v1"
    attention_options: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)  # any other field of the config
    # or a pretrained one
    start: str | None = None  # smollm2, a model folder, a run folder or a hub name
    method: str | None = None  # how it is trained (pretrained.METHODS); with a start, default full
    method_options: dict[str, Any] = field(default_factory=dict)
    # task
    task: str = "needle"
    task_options: dict[str, Any] = field(default_factory=dict)
    # length of the run
    steps: int = 500
    batch_size: int = 32  # sequences per optimiser step, over all processes
    accumulate: int = 1  # gradient accumulation: micro-batches per optimiser step
    seed: int = 0
    # optimiser (AdamW)
    lr: float = 1e-3  # peak learning rate
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    clip: float = 1.0  # maximum gradient norm, 0 for no clipping
    rank_penalty: float = 0.0  # weight of the noise maps' mean effective rank in the loss
    # learning-rate schedule
    schedule: str = "cosine"
    warmup: float = 0.05  # fraction of the steps, or a number of steps
    final_lr: float = 0.04  # at the end, as a fraction of lr
    decay: float = 0.2  # wsd: fraction of the steps after warm-up in which the rate decays
    criterion: float | None = None  # wsd: held-out accuracy, at two evaluations in a row, that
    # begins the decay; the run ends with it, and `steps` is the most it takes
    # execution
    precision: str = "fp32"
    compile: bool = False
    checkpointing: bool = False  # of activations
    threads: int | None = None
    # logging, evaluation, checkpoints
    log_every: int = 10
    evaluate_every: int = 100
    evaluate_examples: int = 256
    calibration_examples: int = 8  # held-out sequences on which a method selects heads
    checkpoint_every: int = 100
    keep: int = 2  # number of checkpoints to keep, at least 2: the last may be incomplete
    snapshots: list[int] = field(default_factory=list)  # steps whose attention maps are kept
    milestones: list[int] = field(default_factory=list)  # steps whose weights are kept; 0: initial
    spike: float | None = None  # a gradient norm above this many times its running mean
    report: list[str] = field(default_factory=list)  # tensorboard, wandb: the Trainer's reporters
    on_divergence: str = "stop"  # loss not finite, or a spike: stop the run, or skip the step

    def __post_init__(self) -> None:
        if self.start is not None and self.method is None:
            object.__setattr__(self, "method", "full")
        _check(self)

    @property
    def variant(self) -> str:
        """Return what is trained, in a word: the mechanism, or the method of a pretrained model."""
        return self.method or self.attention

    @property
    def title(self) -> str:
        """Return a short description for people."""
        subject = self.task if self.start is None else Path(self.start).name
        return f"{subject}, {self.variant}, seed {self.seed}"

    def changed(self, **fields: Any) -> "Recipe":
        """Return the recipe with other values of some fields.

        Raises:
            ValueError: a field does not exist, or a value is invalid.
        """
        _require_fields(fields)
        hints = get_type_hints(Recipe)
        return dataclasses.replace(self, **{k: fitted(k, v, hints[k]) for k, v in fields.items()})

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return dataclasses.asdict(self)

    def digest(self) -> str:
        """Return a short name of everything that decides the outcome."""
        return short_digest(self.as_dict())

    def as_yaml(self) -> str:
        """Return the recipe as YAML, which `load_recipe` reads."""
        return yaml.safe_dump(self.as_dict(), sort_keys=False)


def load_recipe(source: str) -> Recipe:
    """Return a built-in recipe, or one from a YAML file.

    Args:
        source: the name of a built-in recipe (see `built_in`), or a path.

    Raises:
        ValueError: there is no such recipe, or it has invalid fields.
    """
    path = Path(source)
    if not path.is_file():
        if source not in built_in():
            raise ValueError(
                f"recipe: {source!r} is no file and no built-in; those are {', '.join(built_in())}"
                f"{nearest(source, built_in())}"
            )
        path = Path(str(resources.files("antiphase.training") / "recipes" / f"{source}.yaml"))
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: is not YAML ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected fields and their values, got {type(found).__name__}")
    try:
        return Recipe().changed(**{RENAMED.get(k, str(k)): v for k, v in found.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def built_in() -> list[str]:
    """Return the names of the recipes that come with the package."""
    folder = resources.files("antiphase.training") / "recipes"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir())


def parse_setting(text: str) -> tuple[str, Any]:
    """Return the name and the value of `name=value`; the value is parsed as YAML."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--set: got {text!r}, expected NAME=VALUE")
    try:
        return name.strip(), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ValueError(f"--set: {text!r} cannot be read ({error})") from error


def parse_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Return names and values of `name=value` texts, whose order does not matter.

    Raises:
        ValueError: a text cannot be read, or a name has two values.
    """
    found: dict[str, Any] = {}
    for name, value in map(parse_setting, texts):
        if name in found and found[name] != value:
            raise _set_twice(name, found[name], value)
        found[name] = value
    return found


def _set_twice(name: str, first: Any, second: Any) -> ValueError:
    return ValueError(f"--set: {name} is set twice, to {first!r} and to {second!r}; leave out one")


def apply_settings(recipe: Recipe, settings: list[str]) -> Recipe:
    """Return the recipe with settings of the command line.

    Args:
        recipe: to start from.
        settings: `name=value` texts, or `name.inner=value` for an option inside a field, in any
            order; together they must make a valid recipe.

    Raises:
        ValueError: a name does not exist or has two values, or a value is invalid.
    """
    return change_settings(recipe, parse_settings(settings))


def change_settings(recipe: Recipe, given: Mapping[str, Any]) -> Recipe:
    """Return the recipe with other values of fields, or of options inside fields.

    Args:
        recipe: to start from.
        given: values by `name`, or by `name.inner` for an option inside a field, in any order.

    Raises:
        ValueError: a name does not exist or has two values, or a value is invalid.
    """
    changes = {name: value for name, value in given.items() if "." not in name}
    _require_fields(name.partition(".")[0] for name in given)
    for name, value in given.items():
        outer, dot, inner = name.partition(".")
        if dot:
            current = changes.get(outer, getattr(recipe, outer))
            if not isinstance(current, dict):
                raise ValueError(f"--set: {outer!r} has no inner fields; got {name}={value!r}")
            if (given.get(outer) or {}).get(inner, value) != value:
                raise _set_twice(name, given[outer][inner], value)
            changes[outer] = {**current, inner: value}
    return recipe.changed(**changes)


_LEAST = {
    "steps": 1,
    "batch_size": 1,
    "accumulate": 1,
    "log_every": 1,
    "evaluate_every": 1,
    "evaluate_examples": 1,
    "calibration_examples": 1,
    "checkpoint_every": 1,
    "keep": 2,  # one is complete while the next is written
    "threads": 1,
    "warmup": 0,
    "weight_decay": 0,
    "clip": 0,
    "rank_penalty": 0,
}
_NEW_MODEL = ("size", "attention", "attention_options", "model")
_OWN_MODELS = ("rank_penalty", "snapshots", "milestones")  # they need this package's models


def _require_fields(names: Iterable[str]) -> None:
    known = [field.name for field in dataclasses.fields(Recipe)]
    for name in names:
        if name not in known:
            raise ValueError(
                f"recipe: has no field {name!r}; its fields are {', '.join(known)}"
                f"{nearest(name, known)}"
            )


def _check(r: Recipe) -> None:
    for name, allowed in {
        "schedule": SCHEDULES,
        "precision": PRECISIONS,
        "on_divergence": POLICIES,
    }.items():
        if getattr(r, name) not in allowed:
            given = getattr(r, name)
            raise ValueError(
                f"{name}: got {given!r}, allowed are {', '.join(allowed)}"
                f"{nearest(str(given), allowed)}"
            )
    for name, least in _LEAST.items():
        value = getattr(r, name)
        if value is not None and not (math.isfinite(value) and value >= least):
            raise ValueError(f"{name}: got {value!r}, expected at least {least}")
    for name in ("final_lr", "decay", "beta1", "beta2"):
        if not 0 <= getattr(r, name) <= 1:
            raise ValueError(f"{name}: got {getattr(r, name)}, expected 0 to 1")
    if not 0 < r.lr < math.inf:
        raise ValueError(f"lr: got {r.lr}, expected a number above 0")
    if r.criterion is not None and not 0 < r.criterion <= 1:
        raise ValueError(f"criterion: got {r.criterion}, expected an accuracy above 0 and up to 1")
    if r.criterion is not None and r.schedule != "wsd":
        raise ValueError(
            f"criterion: begins the decay of schedule wsd, got schedule {r.schedule!r}; set "
            "schedule=wsd, or leave out criterion"
        )
    if r.spike is not None and r.spike <= 1:
        raise ValueError(f"spike: got {r.spike}, expected more than 1 times the running mean")
    if r.batch_size % r.accumulate:
        raise ValueError(
            f"accumulate: batch_size {r.batch_size} does not divide into {r.accumulate} "
            "micro-batches; change one"
        )
    if r.checkpoint_every % r.log_every:
        raise ValueError(
            f"checkpoint_every: {r.checkpoint_every} is no multiple of log_every {r.log_every}, so "
            "a resumed run would log other means; change one"
        )
    _check_start(r)


def _check_start(r: Recipe) -> None:
    if r.start is None:
        for name in ("method", "method_options"):
            if getattr(r, name):
                raise ValueError(f"{name}: is for a pretrained model; set start, too")
        return
    assert r.method is not None
    defaults = Recipe()
    for name in (*_NEW_MODEL, *_OWN_MODELS):
        if getattr(r, name) != getattr(defaults, name):
            why = "describes a new model" if name in _NEW_MODEL else "is for new models only"
            raise ValueError(
                f"{name}: got {getattr(r, name)!r}, but {name} {why} and the run starts from "
                f"{r.start!r}; leave out {name} or start"
            )
    method_options(r.method, r.method_options, r.steps)
