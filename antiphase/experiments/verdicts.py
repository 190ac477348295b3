"""From predictions written before a run, and intervals measured after it, to verdicts.

A prediction and a measurement are matched by an `Effect`: the metric, the arm, the arm that it is
compared with, and the condition. The direction is part of the effect: what a reading expects to be
larger is the arm, what it expects to be smaller is `versus`.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Literal, get_args

from antiphase.analysis.statistics import Interval, p_more, p_no_worse, p_same

READINGS = {
    "cancelling": "both maps carry the same noise, and subtraction removes it",
    "sparsity": "subtraction only makes a sparse, signed map; any sparse attention would do",
    "unchaining": "weights leave the simplex: they become negative, or exceed softmax's bound",
}

TEXT_READINGS = {
    "quality": "differential attention models text better than standard attention of equal size",
}

DEX_READINGS = {
    "claim": "DEX's operation on the heads' outputs helps by itself",
    "doubt": "the operation is inert; what helps is the tuning around it",
}

Kind = Literal["more", "same", "no worse"]
GateKind = Literal["learned", "room", "noise", "manipulation"]

MIN_SEEDS = 5
"""With fewer seeds a result is descriptive and has no verdict."""

LEVEL = 0.025
"""Of one-sided tests: the level of a 95% interval's end."""

AS_TRAINED = "as trained"
"""The condition of `learned`: the task and the settings that a model was trained on."""

LEARNED = 0.99
NOISE_RANGE = (0.2, 0.6)


class UnmeasuredEffectError(ValueError):
    """A prediction's effect, or that of one of its gates, was not measured by its test."""


class Verdict(str, Enum):
    """What a test says about a prediction."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    INVALID = "invalid"  # a gate failed, or the verdict was withdrawn
    DESCRIPTIVE = "descriptive"  # too few seeds
    NOT_RUN = "not run"

    @property
    def label(self) -> str:
        """Return the verdict with its sign, for tables of text."""
        sign = _SIGNS.get(self)
        return f"{sign} {self.value}" if sign else self.value


_SIGNS = {
    Verdict.SUPPORTED: "✔",
    Verdict.REFUTED: "✘",
    Verdict.UNDECIDED: "?",
    Verdict.INVALID: "!",
}


@dataclass(frozen=True)
class Effect:
    """The key of a measured quantity.

    Attributes:
        metric: what is measured, e.g. "accuracy".
        arm: name of the arm that it is measured of.
        versus: name of the arm or null that is subtracted, paired by seed and example.
        condition: under which condition, if there is more than one.
    """

    metric: str
    arm: str
    versus: str | None = None
    condition: str | None = None

    def __str__(self) -> str:
        minus = f" minus {self.versus}" if self.versus else ""
        under = f", {self.condition}" if self.condition else ""
        return f"{self.metric}: {self.arm}{minus}{under}"


@dataclass(frozen=True)
class Gate:
    """A condition that must hold before a prediction can be judged at all.

    Attributes:
        kind: `learned`, `room`, `noise` or `manipulation`.
        effect: the measured quantity; its mean over all seeds must lie in [low, high].
        low: lowest mean that passes.
        high: highest mean that passes.
    """

    kind: GateKind
    effect: Effect
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        _require_one_of("gate", self.kind, get_args(GateKind))
        _require_effect(self.effect)
        if not self.low <= self.high or (math.isinf(self.low) and math.isinf(self.high)):
            raise ValueError(
                f"gate {self.kind}: got the range [{self.low}, {self.high}], expected low <= high "
                "and at least one of them finite"
            )

    @property
    def bound(self) -> str:
        """Return the range that passes, e.g. "≥ 0.99"."""
        if math.isinf(self.high):
            return f"≥ {self.low:g}"
        return f"≤ {self.high:g}" if math.isinf(self.low) else f"{self.low:g} to {self.high:g}"


def learned(arm: str) -> Gate:
    """Require that an arm has learned its task: an accuracy of at least 0.99 as trained."""
    return Gate("learned", Effect("accuracy", arm, condition=AS_TRAINED), low=LEARNED)


def room(effect: Effect, size: float) -> Gate:
    """Require room for an effect: what the baseline leaves must be twice the size that counts.

    Args:
        effect: what the baseline leaves, e.g. 1 minus its accuracy in the measured condition.
        size: the size that counts.
    """
    return Gate("room", effect, low=2 * size)


def noise(condition: str, standard: str = "standard") -> Gate:
    """Require attention noise: standard's retrieval heads put 0.2 to 0.6 of their mass on I.

    Args:
        condition: in which it is measured.
        standard: the arm with standard attention, on the task of the test.
    """
    effect = Effect("mass on I, retrieval heads", standard, condition=condition)
    return Gate("noise", effect, *NOISE_RANGE)


def manipulation(effect: Effect, low: float) -> Gate:
    """Require that a change took hold: the effect's mean is at least `low`."""
    return Gate("manipulation", effect, low=low)


@dataclass(frozen=True)
class CheckedGate:
    """A gate beside the mean that was measured."""

    gate: Gate
    measured: float

    @property
    def passed(self) -> bool:
        """Return whether the mean lies in the gate's range."""
        return self.gate.low <= self.measured <= self.gate.high

    def __str__(self) -> str:
        outcome = "passed" if self.passed else "FAILED"
        gate = self.gate
        return f"{gate.kind} {outcome}: {gate.effect} = {self.measured:.3g} ({gate.bound})"


@dataclass(frozen=True)
class Judgement:
    """The verdict on a prediction, and what it rests on.

    Attributes:
        verdict: what follows from gates, number of seeds and interval.
        gates: every gate with its number; empty if the test was not run.
        p: one-sided, of the prediction's kind; None without a verdict by the interval.
        void: why a verdict was withdrawn after the study; empty if it was not.
    """

    verdict: Verdict
    gates: tuple[CheckedGate, ...] = ()
    p: float | None = None
    void: str = ""

    @property
    def failed(self) -> tuple[CheckedGate, ...]:
        """Return the gates that failed."""
        return tuple(gate for gate in self.gates if not gate.passed)


@dataclass(frozen=True)
class Prediction:
    """What a reading expects of an effect, and how large an effect counts.

    Attributes:
        reading: one of READINGS, TEXT_READINGS or DEX_READINGS.
        effect: the measured quantity.
        kind: `more` than 0, the `same` as 0, or `no worse` than 0.
        size: the smallest effect that counts, above 0; the margin of `same` and `no worse`.
        because: why the reading expects this.
        gates: what must hold before it is judged.
        primary: whether this is the verdict of its test on its reading; one per test and reading.
    """

    reading: str
    effect: Effect
    kind: Kind
    size: float
    because: str
    gates: tuple[Gate, ...] = ()
    primary: bool = False

    def __post_init__(self) -> None:
        _require_one_of("reading", self.reading, (*READINGS, *TEXT_READINGS, *DEX_READINGS))
        _require_effect(self.effect)
        _require_one_of("kind", self.kind, get_args(Kind))
        if not 0 < self.size < math.inf:
            raise ValueError(f"size: got {self.size}, expected an effect size above 0")

    @property
    def bound(self) -> str:
        """Return the expected range of the effect in words."""
        if self.kind == "same":
            return f"within ±{self.size:g}"
        if self.kind == "no worse":
            return f"no worse than -{self.size:g}"
        return f"more than 0, at least {self.size:g}"

    @property
    def required(self) -> list[Effect]:
        """Return every effect that must be measured: the predicted one and those of the gates."""
        return [self.effect, *(gate.effect for gate in self.gates)]

    def judge(self, measured: Mapping[Effect, Interval] | None) -> Judgement:
        """Return the verdict on this prediction.

        Args:
            measured: the effects of the test; None if it was not run.

        Returns:
            In this order: `not run`; `invalid` if a gate failed; `descriptive` with fewer than
            MIN_SEEDS seeds; else by the 95% interval and the kind.
            `more`: supported if the low end is above 0 and the mean at least the size; refuted if
            the high end is below the size, so a precise null refutes.
            `same`: supported inside ±size, refuted wholly outside.
            `no worse`: supported if the low end is above -size, refuted if the high end is below.

        Raises:
            UnmeasuredEffectError: the effect, or that of a gate, was not measured.
        """
        if measured is None:
            return Judgement(Verdict.NOT_RUN)
        require_measured(None, [self], measured)
        gates = tuple(CheckedGate(gate, measured[gate.effect].mean) for gate in self.gates)
        interval = measured[self.effect]
        if not all(gate.passed for gate in gates):
            return Judgement(Verdict.INVALID, gates)
        if interval.seeds < MIN_SEEDS:
            return Judgement(Verdict.DESCRIPTIVE, gates)
        return Judgement(self._by_interval(interval), gates, self._p(interval))

    def _by_interval(self, interval: Interval) -> Verdict:
        low, high, size = interval.low, interval.high, self.size
        if self.kind == "more":
            supported, refuted = low > 0 and interval.mean >= size, high < size
        elif self.kind == "same":
            supported, refuted = -size < low and high < size, low > size or high < -size
        else:
            supported, refuted = low > -size, high < -size
        if supported:
            return Verdict.SUPPORTED
        return Verdict.REFUTED if refuted else Verdict.UNDECIDED

    def _p(self, interval: Interval) -> float | None:
        if interval.by_seed is None:
            return None
        if self.kind == "more":
            return p_more(interval.by_seed)
        test = p_same if self.kind == "same" else p_no_worse
        return test(interval.by_seed, self.size)

    def as_dict(self) -> dict[str, Any]:
        """Return the prediction as plain JSON types; an open end of a gate is None."""
        fields = asdict(self)
        fields["gates"] = [
            {k: None if v in (math.inf, -math.inf) else v for k, v in gate.items()}
            for gate in fields["gates"]
        ]
        return fields

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Prediction":
        """Return the prediction that `as_dict` stored."""
        gates = tuple(
            Gate(
                gate["kind"],
                Effect(**gate["effect"]),
                -math.inf if gate["low"] is None else gate["low"],
                math.inf if gate["high"] is None else gate["high"],
            )
            for gate in fields["gates"]
        )
        return cls(**{**fields, "effect": Effect(**fields["effect"]), "gates": gates})


def require_measured(
    test: str | None, predictions: Collection[Prediction], measured: Collection[Effect]
) -> None:
    """Check that a test has measured the effect of every prediction and of every gate.

    Raises:
        UnmeasuredEffectError: names the test, the effect and what was measured.
    """
    for prediction in predictions:
        for effect in prediction.required:
            if effect not in measured:
                known = "\n".join(f"  {effect!r}" for effect in measured) or "  (nothing)"
                what = "a prediction" if effect == prediction.effect else "a gate of a prediction"
                raise UnmeasuredEffectError(
                    f"{f'test {test}: ' if test else ''}{what} of {prediction.reading!r} is about\n"
                    f"  {effect!r}\nwhich was not measured. Measured were\n{known}\n"
                    "Make the effects of `predictions` and `measure` equal."
                )


def require_one_primary(test: str, predictions: Sequence[Prediction]) -> None:
    """Check that each reading with predictions in a test has exactly one primary prediction.

    Raises:
        ValueError: names the test, the reading and the number of primary predictions.
    """
    for reading in dict.fromkeys(p.reading for p in predictions):
        count = sum(p.primary for p in predictions if p.reading == reading)
        if count != 1:
            raise ValueError(
                f"test {test}: {reading!r} has {count} primary predictions, expected exactly one; "
                "set primary=True for the one that decides"
            )


def _require_one_of(what: str, given: str, allowed: Sequence[str]) -> None:
    if given not in allowed:
        raise ValueError(f"{what}: got {given!r}, allowed are {', '.join(allowed)}")


def _require_effect(effect: Effect) -> None:
    if not isinstance(effect, Effect):
        raise TypeError(f"effect: got {effect!r}, expected an Effect(metric, arm, ...)")
