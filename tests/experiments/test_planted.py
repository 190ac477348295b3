"""The complete path from maps to a verdict, on maps whose answer is known."""

from pathlib import Path

import pytest
import torch

from antiphase.analysis.capture import CapturedMaps, LayerMaps
from antiphase.analysis.ground_truth import GroundTruth
from antiphase.analysis.metrics.cancellation import from_another_head
from antiphase.analysis.statistics import seed_interval
from antiphase.experiments import e01_agreement
from antiphase.experiments.arms import V1, V2
from antiphase.experiments.e01_agreement import AgreementTest
from antiphase.experiments.model_measurements import MapsOnTask
from antiphase.experiments.results import Result
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Verdict

B, H, N, T = 24, 4, 3, 40


def truth() -> GroundTruth:
    here = torch.arange(T)
    relevant = ((here >= 10) & (here < 16)).expand(B, N, T)
    sink = (here == 0).expand(B, N, T)
    irrelevant = ~(relevant | sink)
    return GroundTruth(torch.full((B, N), T - 1), relevant, sink, irrelevant, torch.zeros(B, N))


def planted(kind: str, seed: int) -> MapsOnTask:
    """Return one layer's maps: noise in common, none in common, or sparse and unrelated."""
    g = torch.Generator().manual_seed(seed)
    common, own1, own2, signal1, signal2 = torch.randn(5, B, H, N, T, generator=g)
    known = truth()
    R = known.relevant[:, None]
    if kind == "common noise":  # the same on I, each its own on R
        s1, s2 = torch.where(R, 2 + signal1, common), torch.where(R, signal2, common)
    elif kind == "sparse":  # sharp rows, nothing in common
        s1, s2 = torch.where(R, 2 + signal1, 6 * own1), torch.where(R, signal2, 6 * own2)
    else:  # the null: common noise, but the second map is of another head
        s1, s2 = torch.where(R, 2 + signal1, common), torch.where(R, signal2, common)
        s2 = from_another_head(s2)
    A1, A2 = s1.softmax(-1), s2.softmax(-1)
    maps = LayerMaps(A1, A1 - 0.8 * A2, A2, torch.full((B, H, N, 1), 0.8))
    captured = CapturedMaps([maps], known.rows, torch.zeros(B, N, 1))
    return MapsOnTask(captured, known, torch.zeros(B, T))


def verdicts(kind: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    def maps_on_task(model: TrainedModel, step: int | None = None) -> MapsOnTask:
        return planted(kind, 100 * model.run.recipe.seed + (step or 0))

    monkeypatch.setattr(e01_agreement, "maps_on_task", maps_on_task)
    models = [TrainedModel(V1.training_run(seed), Path("nowhere")) for seed in range(5)]
    found = AgreementTest().measure(TrainedModels({V1.name: models, V2.name: models}))
    return Result(
        1,
        "",
        "",
        list(AgreementTest.predictions),
        {effect: seed_interval(values) for effect, values in found.effects.items()},
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
