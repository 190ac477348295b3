"""From predictions that were written down before, and intervals measured after, to verdicts."""

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from antiphase.analysis.statistics import Interval

READINGS = {
    "cancelling": "both maps carry the same noise, and subtraction removes it",
    "sparsity": "subtraction only makes a sparse, signed map; any sparse attention would do",
    "unchaining": "weights leave the simplex: they go negative, or past softmax's bound",
}

DEX_READINGS = {
    "claim": "DEX's operation on the heads' outputs helps by itself",
    "doubt": "the operation is inert; what helps is the tuning around it",
}


class Verdict(str, Enum):
    """What a test says about a prediction."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Prediction:
    """What a reading expects of a measured effect, and how large an effect counts."""

    reading: str
    effect: str  # the name of the measured quantity
    expects: Literal["above", "below", "equal"]  # zero
    counts: float  # the smallest effect that matters, above 0
    because: str

    def __post_init__(self) -> None:
        if self.reading not in READINGS | DEX_READINGS:
            allowed = ", ".join(READINGS | DEX_READINGS)
            raise ValueError(f"reading: got {self.reading!r}, allowed are {allowed}")
        if self.counts <= 0:
            raise ValueError(f"counts: got {self.counts}, expected an effect size above 0")

    @property
    def bound(self) -> str:
        """Return what is expected, in signs."""
        if self.expects == "equal":
            return f"within ±{self.counts:g}"
        return f"≥ {self.counts:g}" if self.expects == "above" else f"≤ -{self.counts:g}"

    def judge(self, interval: Interval | None) -> Verdict:
        """Return the verdict on this prediction; no interval means that it was not measured.

        A difference: undecided while zero is possible; supported if it lies on the right side and
        its mean counts; refuted if on the wrong side, or too small to count. An equality: supported
        inside plus/minus what counts, refuted wholly outside.
        """
        if interval is None:
            return Verdict.NOT_RUN
        if self.expects == "equal":
            if -self.counts < interval.low and interval.high < self.counts:
                return Verdict.SUPPORTED
            apart = interval.low > self.counts or interval.high < -self.counts
            return Verdict.REFUTED if apart else Verdict.UNDECIDED
        if interval.covers_zero:
            return Verdict.UNDECIDED
        sign = 1.0 if self.expects == "above" else -1.0
        bounds = sorted((sign * interval.low, sign * interval.high))
        if bounds[1] < self.counts:  # on the other side, or too small
            return Verdict.REFUTED
        return Verdict.SUPPORTED if sign * interval.mean >= self.counts else Verdict.UNDECIDED


def overall(verdicts: list[Verdict]) -> Verdict:
    """Return one verdict of a reading in a test: refuted if any is, supported if all are."""
    ran = [v for v in verdicts if v is not Verdict.NOT_RUN]
    if not ran:
        return Verdict.NOT_RUN
    if Verdict.REFUTED in ran:
        return Verdict.REFUTED
    all_there = len(ran) == len(verdicts)
    if all_there and all(v is Verdict.SUPPORTED for v in ran):
        return Verdict.SUPPORTED
    return Verdict.UNDECIDED
