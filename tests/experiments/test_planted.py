"""The whole path from maps to a verdict, on maps whose answer is known."""

from pathlib import Path

import pytest
import torch

from antiphase.analysis.capture import Captured, LayerMaps
from antiphase.analysis.ground_truth import Truth
from antiphase.analysis.metrics.cancellation import from_another_head
from antiphase.analysis.statistics import bootstrap
from antiphase.experiments import e01_agreement as agreement
from antiphase.experiments.arms import Trained
from antiphase.experiments.e01_agreement import Agreement
from antiphase.experiments.experiment import V1, V2, Shelf
from antiphase.experiments.model_measurements import Look
from antiphase.experiments.study import Result
from antiphase.experiments.verdicts import Verdict

B, H, N, T = 24, 4, 3, 40


def truth() -> Truth:
    here = torch.arange(T)
    relevant = ((here >= 10) & (here < 16)).expand(B, N, T)
    sink = (here == 0).expand(B, N, T)
    return Truth(torch.full((B, N), T - 1), relevant, sink, ~(relevant | sink), torch.zeros(B, N))


def planted(kind: str, seed: int) -> Look:
    """Return one layer's maps: noise in common, none in common, or sparse and unrelated."""
    g = torch.Generator().manual_seed(seed)
    common, own1, own2, signal1, signal2 = torch.randn(5, B, H, N, T, generator=g)
    known = truth()
    R = known.relevant[:, None]
    if kind == "common noise":  # the same on I, each its own on R
        s1, s2 = torch.where(R, 2 + signal1, common), torch.where(R, signal2, common)
    elif kind == "sparse":  # sharp rows, nothing shared
        s1, s2 = torch.where(R, 2 + signal1, 6 * own1), torch.where(R, signal2, 6 * own2)
    else:  # the null: common noise, but the second map is of another head
        s1, s2 = torch.where(R, 2 + signal1, common), torch.where(R, signal2, common)
        s2 = from_another_head(s2)
    A1, A2 = s1.softmax(-1), s2.softmax(-1)
    maps = LayerMaps(A1, A1 - 0.8 * A2, A2, torch.full((B, H, N, 1), 0.8))
    return Look(Captured([maps], known.rows, torch.zeros(B, N, 1)), known, torch.zeros(B, T))


def verdicts(kind: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    def look(trained: Trained, step: int | None = None) -> Look:
        return planted(kind, 100 * trained.job.recipe.seed + (step or 0))

    monkeypatch.setattr(agreement, "look", look)
    models = [Trained(V1.job(seed), Path("nowhere")) for seed in range(3)]
    found = Agreement().measure(Shelf({V1.name: models, V2.name: models}))
    return Result(
        1,
        "",
        "",
        list(Agreement.predictions),
        {name: bootstrap(values) for name, values in found.effects.items()},
    )


def test_common_noise_comes_out_as_cancelling(monkeypatch):
    result = verdicts("common noise", monkeypatch)
    assert result.about("cancelling") is Verdict.SUPPORTED
    assert result.about("sparsity") is Verdict.REFUTED


def test_mere_sparsity_does_not(monkeypatch):
    result = verdicts("sparse", monkeypatch)
    assert result.about("cancelling") is not Verdict.SUPPORTED
    assert result.about("sparsity") is Verdict.SUPPORTED


def test_the_null_does_not(monkeypatch):
    result = verdicts("null", monkeypatch)
    assert result.about("cancelling") in (Verdict.REFUTED, Verdict.UNDECIDED)
