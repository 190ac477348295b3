"""The cases of `antiphase bench attention`: what is visible, what is flagged, what is measured."""

import pytest
import torch

from antiphase.benchmarks import attention_cases
from antiphase.benchmarks.attention import (
    STANDARD_FP32,
    AttentionSetting,
    Row,
    long_settings,
    pathological,
)
from antiphase.benchmarks.attention_cases import KINDS, measure_cases, pairs
from antiphase.benchmarks.timing import Ratio
from antiphase.ops import visible_keys

SETTING = AttentionSetting("fp32", 32, 1, heads=2, width=8)


@pytest.fixture(autouse=True)
def few_calls(monkeypatch):
    monkeypatch.setattr(attention_cases, "OVERHEAD_CALLS", 2)


@pytest.mark.parametrize("rows", KINDS)
def test_every_kind_is_measured(rows):
    ticks = []
    found = measure_cases(SETTING, rows, backward=True, rounds=1, tick=lambda: ticks.append(1))
    assert {case.backward for case in found} == set(attention_cases.passes(rows, True))
    assert len(ticks) == 2 * attention_cases.contests(rows) * len({c.backward for c in found})
    assert all(case.wall.median > 0 and case.baseline_milliseconds > 0 for case in found)
    assert len({case.baseline for case in found}) == 1


@pytest.mark.parametrize("window", [1, 5, 32, 40])
def test_pairs_of_a_window(window):
    q = torch.zeros(1, 1, 32, 1)
    visible = visible_keys(q, q, causal=True, window=window)
    assert pairs(32, window) == int(visible.expand(1, 1, 32, 32).sum())


def test_shares_are_what_is_visible():
    q = torch.zeros(1, 1, 32, 1)
    causal = {"causal": True}
    documents = torch.arange(32) // 8
    seen = {
        "4 documents": {"documents": documents},
        "window of 8": {"window": 8},
        "window of 2 and the first 4 keys": {"window": 2, "keep_first": 4},
    }
    shares = {
        name: share
        for rows in ("packed", "window")
        for contest in KINDS[rows](SETTING, False)
        for name, (_, share) in contest.calls.items()
    }
    for name, options in seen.items():
        visible = visible_keys(q, q, **causal, **options)
        assert shares[name] == pytest.approx(int(visible.sum()) / (32 * 33 / 2))


def test_cases_compute_what_their_baseline_computes():
    """A padded row without padding and the last rows of a window are those of the plain call."""
    (padded,) = KINDS["padded"](SETTING, False)
    plain = padded.against()
    right = padded.calls["right padding, batch of 4"][0]()
    torch.testing.assert_close(right[0], plain[0])
    assert not torch.allclose(right[3, :, -1], plain[3, :, -1])


def row(fp32: float, backward: bool) -> Row:
    ratio = Ratio(fp32, fp32, fp32)
    return Row(STANDARD_FP32, Ratio(1, 1, 1), ratio, None, 1.0, 1.0, None, backward)


def test_a_baseline_much_slower_than_in_fp32_is_flagged():
    rows = [row(0.5, False), row(0.1, True)]
    assert pathological(rows, False) == []
    assert pathological(rows, True) == [
        "forward + backward: the baseline takes 10.0 times as long as in fp32"
    ]


def test_long_settings_keep_dtype_and_threads():
    found = long_settings(AttentionSetting("bf16", 512, 2, queries=1, batch=4))
    assert [(s.dtype, s.length, s.threads, s.rows, s.batch) for s in found] == [
        ("bf16", 32768, 2, 32768, 1),
        ("bf16", 65536, 2, 65536, 1),
    ]
