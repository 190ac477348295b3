"""Every test of the lab. A new one is a new file and a line here."""

from antiphase.experiments.e01_agreement import Agreement
from antiphase.experiments.e02_fixed_lambda import FixedLambda
from antiphase.experiments.e03_gradients import Gradients
from antiphase.experiments.e04_top_k import TopK
from antiphase.experiments.e05_sparsity import Sparsity
from antiphase.experiments.e06_signed_mask import SignedMask
from antiphase.experiments.e07_grid import Grid
from antiphase.experiments.e08_norm import Norm
from antiphase.experiments.e09_finer_heads import FinerHeads
from antiphase.experiments.e10_caution import Caution
from antiphase.experiments.e11_sinks import Sinks
from antiphase.experiments.e12_gating import Gating
from antiphase.experiments.e13_cheap_noise import CheapNoise
from antiphase.experiments.e15_layers import Layers
from antiphase.experiments.experiment import Experiment

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
