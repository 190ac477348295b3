"""The counts of the roofline, by hand, and what follows from them."""

import pytest

from antiphase.benchmarks import roofline
from antiphase.benchmarks.roofline import FUSED, GPUS, HALVES, STANDARD, WIDE, Gpu, Shape, predict

SHAPE = Shape(pairs=3, width=64, length=1000, batch=2, causal=False)
ONE = Gpu("one of each per second", 1.0, 1.0, 1.0)


def test_products_of_a_forward_pass_by_hand():
    fast_elsewhere = Gpu("", 1.0, 1e30, 1e30)
    maps, scores = 6, 1000 * 1000
    by_hand = {
        STANDARD: maps * 2 * scores * (2 * 64 + 2 * 64),  # 2 heads of a pair: Q K^T, A V
        FUSED: maps * 2 * scores * (2 * 64 + 2 * 128),  # 2 maps of a pair, V twice as wide
        WIDE: maps * 2 * scores * (2 * 64 + 2 * 128),
        HALVES: maps * 4 * scores * (2 * 64 + 2 * 64),
    }
    for form, flops in by_hand.items():
        assert predict(form, fast_elsewhere, SHAPE, "prefill").overlapped == flops, form.name


def test_memory_of_decoding_by_hand():
    fast_elsewhere = Gpu("", 1e30, 1.0, 1e30)
    keys = 2 * 3 * 1000 * 2 * 64 * 2  # bytes of all keys, and of all values
    by_hand = {STANDARD: 2 * keys, FUSED: 2 * keys, WIDE: 3 * keys, HALVES: 4 * keys}
    for form, volume in by_hand.items():
        assert predict(form, fast_elsewhere, SHAPE, "decode").overlapped == volume, form.name


@pytest.mark.parametrize("workload", roofline.WORKLOADS)
def test_serial_time_is_the_sum_of_three_and_overlapped_the_largest(workload):
    parts = [
        predict(FUSED, Gpu("", *peaks), SHAPE, workload).overlapped
        for peaks in ((1.0, 1e30, 1e30), (1e30, 1.0, 1e30), (1e30, 1e30, 1.0))
    ]
    found = predict(FUSED, ONE, SHAPE, workload)
    assert found.serial == pytest.approx(sum(parts))
    assert found.overlapped == max(parts)
    assert found.limit == ("products", "memory", "exponentials")[parts.index(max(parts))]


def test_causal_calls_compute_half_of_the_scores():
    full = predict(FUSED, GPUS[0], Shape(causal=False), "training")
    causal = predict(FUSED, GPUS[0], Shape(causal=True), "training")
    assert causal.overlapped == pytest.approx(full.overlapped / 2)


def test_an_unknown_workload_raises():
    with pytest.raises(ValueError, match=r"prefil.*prefill, training, decode"):
        predict(FUSED, GPUS[0], SHAPE, "prefil")


def test_every_form_and_device_is_in_the_table():
    rows = roofline.table(Shape())
    assert all(len(row) == 2 + len(GPUS) for row in rows)
    decode = {row[1]: row[2] for row in rows if row[0] == "decode"}
    assert decode["fused, backward in 2 kernels"].startswith("1.00 / ")
    assert decode["2 calls over wide V"].startswith("1.50 / ")
