"""Every test of the lab. A new one is a new file and a line here."""

from antiphase.lab.experiments.agreement import Agreement
from antiphase.lab.experiments.base import Experiment
from antiphase.lab.experiments.caution import Caution
from antiphase.lab.experiments.cheap_noise import CheapNoise
from antiphase.lab.experiments.finer_heads import FinerHeads
from antiphase.lab.experiments.fixed_lambda import FixedLambda
from antiphase.lab.experiments.gating import Gating
from antiphase.lab.experiments.gradients import Gradients
from antiphase.lab.experiments.grid import Grid
from antiphase.lab.experiments.layers import Layers
from antiphase.lab.experiments.norm import Norm
from antiphase.lab.experiments.signed_mask import SignedMask
from antiphase.lab.experiments.sinks import Sinks
from antiphase.lab.experiments.sparsity import Sparsity
from antiphase.lab.experiments.top_k import TopK

EXPERIMENTS: dict[int, type[Experiment]] = {
    kind.number: kind
    for kind in (
        Agreement,
        FixedLambda,
        Gradients,
        TopK,
        Sparsity,
        SignedMask,
        Grid,
        Norm,
        FinerHeads,
        Caution,
        Sinks,
        Gating,
        CheapNoise,
        Layers,
    )
}


def experiments(numbers: list[int] | None, full: bool) -> list[Experiment]:
    """Return the tests of those numbers, or the quick ones, or all."""
    for number in numbers or []:
        if number not in EXPERIMENTS:
            raise ValueError(
                f"--only: got {number}, the tests are {', '.join(map(str, EXPERIMENTS))}"
            )
    if numbers:
        return [EXPERIMENTS[n]() for n in sorted(set(numbers))]
    return [kind() for kind in EXPERIMENTS.values() if full or kind.quick]
