"""From predictions written before a run, and intervals measured after it, to verdicts.

A prediction and a measurement are matched by an `Effect`: the metric, the arm, the arm that it is
compared with, and the condition.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from antiphase.analysis.statistics import Interval

READINGS = {
    "cancelling": "both maps carry the same noise, and subtraction removes it",
    "sparsity": "subtraction only makes a sparse, signed map; any sparse attention would do",
    "unchaining": "weights leave the simplex: they become negative, or exceed softmax's bound",
}

DEX_READINGS = {
    "claim": "DEX's operation on the heads' outputs helps by itself",
    "doubt": "the operation is inert; what helps is the tuning around it",
}


class UnmeasuredEffectError(ValueError):
    """A prediction's effect was not measured by its test."""


class Verdict(str, Enum):
    """What a test says about a prediction."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"

    @property
    def label(self) -> str:
        """Return the verdict with its sign, for tables of text."""
        sign = _SIGNS[self]
        return f"{sign} {self.value}" if sign else self.value


_SIGNS = {
    Verdict.SUPPORTED: "✔",
    Verdict.REFUTED: "✘",
    Verdict.UNDECIDED: "?",
    Verdict.NOT_RUN: "",
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


EXPECTATIONS = ("above", "below", "equal")


@dataclass(frozen=True)
class Prediction:
    """What a reading expects of an effect, and how large an effect counts.

    Attributes:
        reading: one of READINGS (or of DEX_READINGS).
        effect: the measured quantity.
        expects: `above` or `below` zero, or `equal` to it.
        counts: the smallest effect that matters, above 0.
        because: why the reading expects this.
    """

    reading: str
    effect: Effect
    expects: Literal["above", "below", "equal"]
    counts: float
    because: str

    def __post_init__(self) -> None:
        if self.reading not in READINGS | DEX_READINGS:
            allowed = ", ".join(READINGS | DEX_READINGS)
            raise ValueError(f"reading: got {self.reading!r}, allowed are {allowed}")
        if not isinstance(self.effect, Effect):
            raise TypeError(f"effect: got {self.effect!r}, expected an Effect(metric, arm, ...)")
        if self.expects not in EXPECTATIONS:
            raise ValueError(
                f"expects: got {self.expects!r}, allowed are {', '.join(EXPECTATIONS)}"
            )
        if not 0 < self.counts < math.inf:
            raise ValueError(f"counts: got {self.counts}, expected an effect size above 0")

    @property
    def bound(self) -> str:
        """Return the expected range of the effect, e.g. "≥ 0.02"."""
        if self.expects == "equal":
            return f"within ±{self.counts:g}"
        return f"≥ {self.counts:g}" if self.expects == "above" else f"≤ -{self.counts:g}"

    def judge(self, interval: Interval | None) -> Verdict:
        """Return the verdict on this prediction.

        Args:
            interval: the measured effect; None if the test was not run.

        Returns:
            For a difference (`above`, `below`): undecided while the interval covers zero; supported
            if it lies on the predicted side and its mean counts; refuted if it lies on the other
            side or is too small to count. For `equal`: supported if the interval lies inside
            plus/minus what counts, refuted if it lies entirely outside.
        """
        if interval is None:
            return Verdict.NOT_RUN
        if self.expects == "equal":
            if -self.counts < interval.low and interval.high < self.counts:
                return Verdict.SUPPORTED
            outside = interval.low > self.counts or interval.high < -self.counts
            return Verdict.REFUTED if outside else Verdict.UNDECIDED
        if interval.covers_zero:
            return Verdict.UNDECIDED
        sign = 1.0 if self.expects == "above" else -1.0
        bounds = sorted((sign * interval.low, sign * interval.high))
        if bounds[1] < self.counts:  # on the other side, or too small
            return Verdict.REFUTED
        return Verdict.SUPPORTED if sign * interval.mean >= self.counts else Verdict.UNDECIDED


def require_measured(
    test: str, predictions: Collection[Prediction], measured: Collection[Effect]
) -> None:
    """Check that a test has measured the effect of every prediction.

    Raises:
        UnmeasuredEffectError: names the test, the effect and what was measured.
    """
    for prediction in predictions:
        if prediction.effect not in measured:
            known = "\n".join(f"  {effect!r}" for effect in measured) or "  (nothing)"
            raise UnmeasuredEffectError(
                f"test {test}: a prediction of {prediction.reading!r} is about\n"
                f"  {prediction.effect!r}\nwhich was not measured. Measured were\n{known}\n"
                "Make the effects of `predictions` and `measure` equal."
            )


def overall(verdicts: list[Verdict]) -> Verdict:
    """Combine the verdicts of a reading in a test: refuted if any is, supported if all are."""
    ran = [v for v in verdicts if v is not Verdict.NOT_RUN]
    if not ran:
        return Verdict.NOT_RUN
    if Verdict.REFUTED in ran:
        return Verdict.REFUTED
    complete = len(ran) == len(verdicts)
    if complete and all(v is Verdict.SUPPORTED for v in ran):
        return Verdict.SUPPORTED
    return Verdict.UNDECIDED
