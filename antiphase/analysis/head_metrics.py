"""Every metric of the heads of one layer that its maps and the ground truth allow."""

import torch
from torch import Tensor

from antiphase.analysis.capture import LayerMaps
from antiphase.analysis.ground_truth import GroundTruth
from antiphase.analysis.metrics import cancellation, rank, sparsity
from antiphase.analysis.metrics.allocation import allocation, signal_gain

Values = dict[str, Tensor]
"""Tensors by name: metrics [B, h], NaN where a sequence does not define one."""


def head_metrics(m: LayerMaps, truth: GroundTruth, *, answers: bool) -> Values:
    """Measure the maps of one layer, at the rows of the ground truth.

    Args:
        m: the maps of the layer.
        truth: what the keys of their rows are.
        answers: whether any sequence has an answer; without, metrics of R are left out.

    Returns:
        Means over rows. Metrics of A2 are left out with one map per head.
    """
    on = allocation(m.difference, truth)
    found = {"mass on R": on["relevant"]} if answers else {}
    found |= {"mass on I": on["irrelevant"], "mass on S": on["sink"], "mass on own": on["own"]}
    found |= {
        "entropy": sparsity.entropy(m.difference, truth.visible),
        "Gini": sparsity.gini(m.difference, truth.visible),
        "Hoyer": sparsity.hoyer(m.difference, truth.visible),
        "fraction > 1/T": sparsity.fraction_above_uniform(m.difference, truth.visible),
        "negative mass": sparsity.negative_mass(m.difference, truth.visible),
        "max weight": sparsity.max_weight(m.difference, truth.visible),
        "outside [0, 1]": sparsity.fraction_outside_simplex(m.difference, truth.visible),
        "zero weights": sparsity.fraction_zero(m.difference, truth.visible),
        "dead rows": sparsity.dead(m.difference, truth.visible),
    }
    if m.noise is not None and m.lam is not None:
        found["lam"] = m.lam.expand(*m.signal.shape[:3], 1)[..., 0]
        found["optimal lam"] = cancellation.optimal_weight(m.signal, m.noise, truth)
        found |= _agreement(m.signal, m.noise, truth, "I", truth.irrelevant)
        if answers:
            found |= _agreement(m.signal, m.noise, truth, "R", truth.relevant)
            found["CMRR, dB"] = cancellation.rejection(m.signal, m.difference, truth)
            found["signal gain"] = signal_gain(m.difference, m.signal, truth)
    return {name: v.double().flatten(2).mean(2) if v.dim() > 2 else v for name, v in found.items()}


def _agreement(
    signal: Tensor, noise: Tensor, truth: GroundTruth, symbol: str, where: Tensor
) -> Values:
    """Return the correlation of A1 and A2 at `where`, and its two nulls."""
    name = f"corr on {symbol}"
    found = {name: cancellation.correlation(signal, noise, where)}
    undefined = torch.full_like(found[name], torch.nan)
    found |= {f"{name}, other head": undefined, f"{name}, other example": undefined}
    if noise.shape[1] > 1:
        other = cancellation.from_another_head(noise)
        found[f"{name}, other head"] = cancellation.correlation(signal, other, where)
    if noise.shape[0] > 1:
        other = cancellation.from_another_example(noise)
        both = cancellation.visible_in_both(where, truth)
        found[f"{name}, other example"] = cancellation.correlation(signal, other, both)
    return found


def named_maps(m: LayerMaps) -> dict[str, Tensor]:
    """Return the maps of a layer under the names that figures use."""
    if m.noise is None:
        return {"A": m.difference}
    return {"A1": m.signal, "A2": m.noise, "A1 - lam A2": m.difference}


def spectra(m: LayerMaps) -> Values:
    """Return the singular values of the maps' columns < T/2, [B, h, k]; rows must be >= T/2."""
    maps = {"A": m.difference}
    if m.noise is not None and m.lam is not None:
        maps = {"A1": m.signal, "lam A2": m.lam * m.noise, **maps}
    return {n: rank.singular_values(A[..., : A.shape[-1] // 2]) for n, A in maps.items()}


def head_ranks(spectra: Values) -> Values:
    """Return the ranks of the maps whose singular values are given, by three measures."""
    return {
        f"{measure}, {name}": value
        for name, s in spectra.items()
        for measure, value in rank.ranks_of_spectrum(s).items()
    }


def complete_ranks(m: LayerMaps) -> Values:
    """Return the effective rank of complete maps A [T, T], and of a uniform causal one."""
    A = m.difference.double()
    uniform = rank.effective_rank(rank.uniform_causal(A.shape[-1]))
    return {
        "effective rank, complete A": rank.effective_rank(A),
        "effective rank, uniform": uniform.expand(A.shape[:2]),
    }
