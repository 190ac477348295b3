"""Test 14: is it DEX's operation that helps, and where it acts? Arms, predictions and effects.

With W_O trained, the operation is a reparameterisation of W_O (the fold shows it). So W_O is
frozen, except in the published form and its baseline. Then the operation adds a linear map that W_O
cannot absorb, and K, V and the operation against K and V alone still tests capacity only. What
decides is where it acts: the same operation on the heads that DEX selects, on those of lowest
entropy, and on random ones; and the same linear map without lam and annealing.

An operation that never switched on cannot decide between the readings: every prediction has a gate
on the size of each operation in it, and below 5% the verdict is `invalid`. W_D starts at 0 in all
arms: at N(0, 0.02²) an untrained operation would be 12% of the output and pass the gate. lam as
published starts at 0 and moves by at most the learning rate per step, which is too little in a run
of hours; so it also comes held at lam_init after annealing, and with a learning rate 100 times as
high. The other heads have the held form.

Whether a linear map before W_O can lower the loss at all in a run of this length is not known. So
predictions with W_O frozen have a gate for room: training W_O as well, which can do all that such a
map can, must gain twice the size that counts.

O + lam f_D(O) is no control: with W_D -> -W_D it is DEX itself, and from W_D = 0 both train the
same model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from antiphase.analysis.before_after import SWITCHED_ON, Array, ModelScores
from antiphase.analysis.before_after_table import before_and_after
from antiphase.analysis.statistics import Interval, Values, difference, seed_interval
from antiphase.experiments.verdicts import (
    Effect,
    Gate,
    Kind,
    Prediction,
    manipulation,
    require_one_primary,
    room,
)

STUDY_ID, NUMBER, TITLE = "dex", 14, "DEX controls"
QUESTION = "Is it DEX's operation that helps, and does it matter on which heads it acts?"

ANNEAL = 100
"""T', optimiser steps of annealing, of a run of at least 300."""


@dataclass(frozen=True)
class DexArm:
    """One way to train the pretrained model.

    Attributes:
        name: in tables and effects.
        method: of `pretrained.METHODS`.
        options: of the method.
        summary: one line.
    """

    name: str
    method: str
    summary: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def has_operation(self) -> bool:
        """Return whether DEX's operation is in it."""
        return self.method == "dex"


# W_D is new and starts at 0: at the rate of the pretrained weights the operation is 5% of the
# output after 300 steps, where the gate is; at 3 times that rate 13%, at 10 times 34%, with a
# higher loss (docs/log.md)
_SHARED = {"anneal": ANNEAL, "zero_start": True, "operation_lr_factor": 3.0}
_FROZEN = {**_SHARED, "train": "kv"}  # W_O is
_HELD = {**_FROZEN, "lam": "held"}

KV = DexArm("kv-only", "kv-only", "W_K and W_V, without the operation")
HELD = DexArm(
    "dex (lam held)",
    "dex",
    "W_K, W_V and the operation; lam held at lam_init after annealing",
    _HELD,
)
DEX = DexArm("dex", "dex", "the same, lam as published", _FROZEN)
FAST = DexArm(
    "dex (lam x100)",
    "dex",
    "the same, lam as published with a learning rate 100 times as high",
    {**_FROZEN, "lam_lr_factor": 100.0},
)
LOWEST = DexArm(
    "lowest entropy (lam held)",
    "dex",
    "as dex (lam held), on the heads of lowest entropy",
    {**_HELD, "heads": "lowest-entropy"},
)
RANDOM = DexArm(
    "random heads (lam held)",
    "dex",
    "as dex (lam held), on random heads of each layer, others for each seed",
    {**_HELD, "heads": "random"},
)
LINEAR = DexArm(
    "linear adapter",
    "dex",
    "W_K, W_V and O - f_D(O) on the selected heads, without lam and annealing",
    {**_FROZEN, "lam": "one"},
)
KVO = DexArm("kvo-only", "kvo-only", "W_K, W_V and W_O, without the operation")
PUBLISHED = DexArm(
    "dex (W_O trained)",
    "dex",
    "W_K, W_V, W_O and the operation, lam as published",
    _SHARED,
)
V2 = DexArm("v2", "v2", "converted to DIFF V2, its attention trained")
ARMS = (KV, HELD, DEX, FAST, LOWEST, RANDOM, LINEAR, KVO, PUBLISHED, V2)

LOSS = "loss of held-out text"
BENCHMARKS = {
    "needles found": ("needle", "found"),
    "SQuAD 2.0, F1 of answerable questions": ("squad2", "F1"),
    "LAMBADA, accuracy": ("lambada", "acc"),
    "HellaSwag, accuracy": ("hellaswag", "acc_norm"),
}
"""Metrics by name: the benchmark and its measure. More is better, at most 1. Descriptive: with the
items of a run of hours, an interval is about as wide as published effects."""
OPERATION = "operation, fraction of the heads' output"

NATS = 0.005
"""Size of a difference in loss that counts; training W_O as well gains 0.017 (docs/log.md)."""


def _active(*arms: DexArm) -> tuple[Gate, ...]:
    """Require that the operation of every arm that has one is at least 5% of the heads' output."""
    return tuple(
        manipulation(Effect(OPERATION, arm.name), SWITCHED_ON) for arm in arms if arm.has_operation
    )


def _loss(
    reading: str,
    control: DexArm,
    dex: DexArm,
    kind: Kind,
    because: str,
    *,
    primary: bool = False,
) -> Prediction:
    """Predict the control's loss minus that of DEX: what the claim expects to be larger first."""
    effect = Effect(LOSS, control.name, dex.name)
    gates = _active(control, dex)
    if control is not KVO:
        gates = (*gates, room(Effect(LOSS, KV.name, KVO.name), NATS))
    return Prediction(reading, effect, kind, NATS, because, gates, primary)


_HELPS: tuple[tuple[str, Kind, str], ...] = (
    ("claim", "more", "it helps"),
    ("doubt", "same", "it is inert; what helps is the tuning around it"),
)
# Written before any run of this study's seeds. The claim: the operation takes noise out of the
# heads that have it. The doubt: it is inert, or it is a linear map like any other.
PREDICTIONS = (
    _loss("claim", LOWEST, HELD, "more", "heads of low entropy have little noise", primary=True),
    _loss("doubt", LOWEST, HELD, "same", "a linear map on any heads does as well", primary=True),
    _loss("claim", RANDOM, HELD, "more", "the heads that it selects have the noise"),
    _loss("doubt", RANDOM, HELD, "same", "a linear map on any heads does as well"),
    _loss("claim", LINEAR, HELD, "more", "lam and annealing make it a subtraction of noise"),
    # the adapter's loss is no worse: HELD minus LINEAR is not far below 0
    _loss("doubt", HELD, LINEAR, "no worse", "it is a linear map, with or without lam"),
    *(
        _loss(reading, control, dex, kind, because)
        for control, dex in ((KV, HELD), (KV, DEX), (KV, FAST), (KVO, PUBLISHED))
        for reading, kind, because in _HELPS
    ),
)
require_one_primary(f"{NUMBER} (DEX)", PREDICTIONS)


@dataclass(frozen=True)
class ArmRun:
    """What one run measured.

    Attributes:
        before: scores of the base model.
        after: of the trained one.
        operation: size of the operation, [sequences]; empty without one.
        lam: per layer; empty without one.
        benchmarks: by metric, before and after; those that were measured.
    """

    before: ModelScores
    after: ModelScores
    operation: Array
    lam: tuple[float, ...] = ()
    benchmarks: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def from_results(cls, results: dict[str, Any]) -> "ArmRun":
        """Return what a run's results.json holds."""
        tasks = results.get("benchmarks", {}).get("tasks", {})
        values = {
            metric: [model["value"] for model in tasks[task]["measures"][measure]["models"]]
            for metric, (task, measure) in BENCHMARKS.items()
            if task in tasks
        }
        return cls(
            *before_and_after(results),
            np.array(results["operation"]),
            tuple(results["lam"]),
            {metric: (before, after) for metric, (before, after) in values.items()},
        )


Runs = Mapping[str, list[ArmRun]]
"""The runs of each arm, by its name, one per seed."""


def metrics_of(runs: Runs) -> list[str]:
    """Return the metrics that were measured: the loss, then benchmarks."""
    first = next(iter(runs.values()))[0]
    return [LOSS, *first.benchmarks]


def values_of(runs: list[ArmRun], metric: str) -> Values | None:
    """Return a metric after training, by seed; None if it was not measured.

    A benchmark has one number per seed, on the same items for every arm; the loss has one per
    held-out sequence.
    """
    if metric == LOSS:
        return [run.after.loss for run in runs]
    if metric == OPERATION:
        return [run.operation for run in runs] if all(run.operation.size for run in runs) else None
    if any(metric not in run.benchmarks for run in runs):
        return None
    return [np.array([run.benchmarks[metric][1]]) for run in runs]


def contrast(runs: Runs, effect: Effect) -> Interval | None:
    """Return an effect with its interval over seeds; None if it was not measured."""
    if any(name not in runs for name in (effect.arm, effect.versus) if name is not None):
        return None
    found = values_of(runs[effect.arm], effect.metric)
    if found is None or effect.versus is None:
        return None if found is None else seed_interval(found)
    other = values_of(runs[effect.versus], effect.metric)
    return None if other is None else seed_interval(difference(found, other))


def measured_effects(runs: Runs) -> dict[Effect, Interval]:
    """Return every effect of the predictions and their gates that was measured."""
    required = dict.fromkeys(effect for p in PREDICTIONS for effect in p.required)
    found = {effect: contrast(runs, effect) for effect in required}
    return {effect: interval for effect, interval in found.items() if interval is not None}
