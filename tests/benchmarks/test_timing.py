"""Timing: ratios per round, medians, and peak memory."""

import pytest
import torch

from antiphase.benchmarks.attention import AttentionSetting
from antiphase.benchmarks.timing import Sample, interleave, peak_extra_bytes, ratio


def test_ratio_is_taken_round_by_round():
    baseline = [
        Sample(wall=t, cpu=1.0) for t in (1.0, 10.0, 2.0)
    ]  # the machine is slow in the second round
    ours = [Sample(wall=t, cpu=3.0) for t in (0.5, 5.0, 1.2)]
    assert ratio(ours, baseline, "wall").median == 0.5
    assert ratio(ours, baseline, "cpu").median == 3.0


def test_alternatives_are_interleaved():
    order = []
    works = {name: (lambda name=name: order.append(name)) for name in "ab"}
    samples = interleave(works, rounds=2)
    assert order == ["a", "b"] * 3  # one warm-up round
    assert [len(s) for s in samples.values()] == [2, 2]


def test_peak_memory_is_that_of_the_work():
    def work():
        torch.ones(50_000_000).mul_(2)

    peak = peak_extra_bytes(work)
    if peak is None:
        pytest.skip("the system does not report peak memory")
    assert 190e6 < peak < 260e6


def test_flops_count_the_unmasked_part():
    full = AttentionSetting("fp32", 8, 1, heads=2, width=4, causal=False)
    assert full.flops == 4 * 2 * 64 * 4
    causal = AttentionSetting("fp32", 8, 1, heads=2, width=4)
    assert causal.flops == 4 * 2 * 36 * 4
    two_rows = AttentionSetting("fp32", 8, 1, queries=2, heads=2, width=4)
    assert two_rows.flops == 4 * 2 * 16 * 4
