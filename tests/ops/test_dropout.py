"""Dropout by counter: the definition, its statistics, and that nothing but the counter matters."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from antiphase import attention_maps, diff_attention
from antiphase.ops import attention, dropout_mask
from tests.ops.cases import Case, run
from tests.ops.loop import is_kept

SEED = torch.tensor(4_611_686_018_427_387_905)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, 12345])
def test_is_the_hash_of_its_definition(seed: int):
    shape = (2, 3, 4, 6)
    mask = dropout_mask(torch.tensor(seed), 0.4, shape)
    assert mask.shape == shape
    for b, h, i, j in torch.cartesian_prod(*(torch.arange(n) for n in shape)).tolist():
        assert mask[b, h, i, j] == is_kept(seed, 0.4, b, h, i + 6 - 4, j)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_keeps_the_stated_fraction_everywhere(p: float):
    mask = dropout_mask(SEED, p, (4, 4, 128, 128)).double()
    spread = 5 * (p * (1 - p)) ** 0.5  # five standard deviations
    assert abs(mask.mean() - (1 - p)) < spread / mask.numel() ** 0.5
    for dims in ((1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)):  # per sequence, head, row and key
        means = mask.mean(dims)
        assert (means - (1 - p)).abs().max() < spread / (mask.numel() / len(means)) ** 0.5


def test_neighbours_are_independent():
    x = dropout_mask(SEED, 0.5, (4, 4, 64, 64)).double() - 0.5
    others = [x.roll(1, dims=i) for i in range(4)] + [
        dropout_mask(SEED + 1, 0.5, (4, 4, 64, 64)).double() - 0.5,
        dropout_mask(SEED + 2**32, 0.5, (4, 4, 64, 64)).double() - 0.5,
    ]
    for other in others:
        assert abs((4 * x * other).mean()) < 5 / x.numel() ** 0.5


def test_rows_alone_and_in_blocks_are_those_of_the_complete_mask():
    complete = dropout_mask(SEED, 0.3, (2, 3, 10, 14))
    for rows in (slice(0, 4), slice(4, 10), slice(7, None)):
        assert torch.equal(dropout_mask(SEED, 0.3, (2, 3, 10, 14), rows), complete[:, :, rows])
    for i in range(10):  # one query at a time, with the keys there are by then
        keys = 14 - 10 + i + 1
        one = dropout_mask(SEED, 0.3, (2, 3, 1, keys))
        assert torch.equal(one, complete[:, :, i : i + 1, :keys])


def test_one_mask_for_both_maps_and_every_backend():
    """With V the identity, the output is the map: zero exactly where a weight was dropped."""
    q1, k1, q2, k2, _, _ = Case(B=2, H=2, Tq=8, d=4).inputs()
    v = torch.eye(8, dtype=torch.float64).expand(2, 2, 8, 8)
    options = {"dropout": 0.5, "dropout_seed": SEED}
    kept = dropout_mask(SEED, 0.5, (2, 2, 8, 8))
    maps = attention_maps(q1, k1, q2, k2, v, 0.6)
    for backend in ("auto", "reference", "sdpa", "fused_cpu"):
        out = diff_attention(q1, k1, q2, k2, v, 0.6, **options, backend=backend)
        assert torch.equal(out != 0, kept)
        torch.testing.assert_close(out, 2 * maps.A * kept)
        assert torch.equal(attention(q1, k1, v, **options, backend=backend) != 0, kept)


def test_the_seed_comes_from_the_generator():
    inputs = Case(Tq=12).inputs()
    torch.manual_seed(3)
    first, second = (diff_attention(*inputs, dropout=0.5) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(diff_attention(*inputs, dropout=0.5), first)
    state = torch.get_rng_state()
    diff_attention(*inputs)  # no dropout: nothing is drawn
    assert torch.equal(torch.get_rng_state(), state)
    pinned = [diff_attention(*inputs, dropout=0.5, dropout_seed=SEED) for _ in range(2)]
    assert torch.equal(*pinned)
    assert torch.equal(torch.get_rng_state(), state)


def test_recomputation_drops_the_same_weights():
    inputs = Case(Tq=9, d=3, dv=2).inputs()

    def layer(*tensors):
        return diff_attention(*tensors, dropout=0.5)

    def recomputed(*tensors):
        return checkpoint(layer, *tensors, use_reentrant=False)

    torch.manual_seed(0)
    expected = run(layer, inputs)
    torch.manual_seed(0)
    for got, want in zip(run(recomputed, inputs), expected, strict=True):
        assert torch.equal(got, want)


def test_the_expectation_is_the_map_without_dropout():
    inputs = Case(H=1, Hkv=1, Tq=6, d=4, dv=3).inputs()
    inputs = [t.expand(4000, *t.shape[1:]) for t in inputs]  # every sequence has its own mask
    out = diff_attention(*inputs, dropout=0.25, dropout_seed=SEED)
    error = out.std(0) / 4000**0.5
    assert ((out.mean(0) - diff_attention(*inputs)[0]).abs() < 5 * error).all()


@pytest.mark.parametrize("dropout", [1e-12, 0.999999999])
def test_probabilities_at_the_ends_stay_finite(dropout: float):
    inputs = Case(Tq=6).inputs()
    out = diff_attention(*inputs, dropout=dropout, dropout_seed=SEED)
    assert out.isfinite().all()
