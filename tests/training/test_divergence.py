"""Divergence: losses that are not finite and gradient spikes are named, and stop or skip."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from antiphase.models.layers import SwiGLU
from antiphase.training import resume, train
from antiphase.training.callbacks import read_metrics
from antiphase.training.divergence import DivergenceError, SpikeDetector
from tests.training.small import SMALL, assert_same_end, unfinished, weights


@pytest.fixture
def break_at(monkeypatch):
    """Scale a feed-forward layer's gradients, and with NaN its output, in its n-th pass."""
    forward = SwiGLU.forward

    def set_up(number: int, factor: float) -> None:
        passes = []

        def broken(self, x):
            out = forward(self, x)
            if self.training and torch.is_grad_enabled():  # without: the search for the layer
                passes.append(1)
            if self.training and len(passes) == number:
                return out + (factor - 1) * (out - out.detach())
            return out

        monkeypatch.setattr(SwiGLU, "forward", broken)

    return set_up


def test_a_loss_that_is_not_finite_stops_with_step_layer_and_examples(break_at, tmp_path):
    break_at(7, float("nan"))
    with pytest.raises(DivergenceError) as caught:
        train(SMALL, tmp_path / "r", quiet=True)
    said = str(caught.value)
    assert "step 7: the loss is nan, first in model.layers.0" in said
    assert "on examples 48 to 55" in said


def test_a_skipped_step_leaves_finite_weights(break_at, tmp_path):
    break_at(7, float("nan"))
    folder = train(SMALL.changed(on_divergence="skip"), tmp_path / "r", quiet=True)
    lines = read_metrics(folder)
    assert [line["step"] for line in lines if "why" in line] == [7]
    # the mean of its losses is left out, and no other
    assert [line["step"] for line in lines if "loss" in line] == [5, 15, 20, 25, 30]
    assert "1 steps were skipped" in (folder / "README.md").read_text()
    assert "NaN" not in (folder / "metrics.jsonl").read_text()
    net = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert all(p.isfinite().all() for p in net.parameters())


def test_divergence_in_one_micro_batch_drops_the_complete_step(break_at, tmp_path):
    """The first of two micro-batches is broken; the second must not make a step of its own."""
    recipe = SMALL.changed(
        accumulate=2, steps=1, log_every=1, checkpoint_every=1, on_divergence="skip", warmup=0
    )
    start = train(recipe.changed(lr=1e-12, weight_decay=0.0), tmp_path / "still", quiet=True)
    break_at(1, float("nan"))
    folder = train(recipe, tmp_path / "r", quiet=True)
    for name, value in weights(start).items():
        torch.testing.assert_close(weights(folder)[name], value, rtol=0, atol=1e-9)


def test_a_spike_is_detected_before_clipping(break_at, tmp_path):
    """Clipped to 0.01, every gradient has the same norm; the norm before clipping shows it."""
    break_at(7, 1000.0)
    with pytest.raises(
        DivergenceError, match=r"step 7: the gradient's norm .* times its running mean"
    ):
        train(SMALL.changed(spike=5.0, clip=0.01), tmp_path / "r", quiet=True)


def test_a_run_that_only_skips_stops(tmp_path, monkeypatch):
    monkeypatch.setattr(SpikeDetector, "check", lambda self, norm: "a spike")
    recipe = SMALL.changed(spike=2.0, on_divergence="skip")
    with pytest.raises(DivergenceError, match="step 11: more than 10 steps in a row were skipped"):
        train(recipe, tmp_path / "r", quiet=True)


def test_an_ordinary_norm_is_no_spike():
    spikes = SpikeDetector(3.0)
    assert [spikes.check(norm) for norm in (1.0, 2.9, 0.5)] == [None] * 3
    assert "times its running mean" in spikes.check(4.0)
    mean = spikes.mean
    assert spikes.check(1e9) is not None
    assert spikes.mean == mean  # a spike does not raise the mean
    assert SpikeDetector(None).check(1e9) is None


def test_a_resumed_run_keeps_the_running_mean(tmp_path):
    recipe = SMALL.changed(spike=1.05, on_divergence="skip")
    complete = train(recipe, tmp_path / "complete", quiet=True)
    assert any("why" in line for line in read_metrics(complete)), "no spike: the test shows nothing"
    assert_same_end(resume(unfinished(complete, tmp_path / "r"), quiet=True), complete)
