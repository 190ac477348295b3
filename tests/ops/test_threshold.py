"""Threshold attention against its formula, row by row; gradients, sparsity and dead rows."""

import math

import pytest
import torch

from antiphase.analysis.metrics import sparsity
from antiphase.ops import threshold_attention, threshold_maps


def inputs(B=2, H=4, Hkv=2, T=11, d=8, dv=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    random = {"generator": g, "dtype": torch.float64}
    q1, q2 = (torch.randn(B, H, T, d, **random) for _ in range(2))
    k1, k2 = (torch.randn(B, Hkv, T, d, **random) for _ in range(2))
    return q1, k1, q2, k2, torch.randn(B, Hkv, T, dv, **random), torch.rand(1, H, 1, 1, **random)


def direct(q1, k1, q2, k2, v, lam, visible, beta, power):
    """Return output and maps, computed one weight after the other."""
    B, H, T, d = q1.shape
    zero = torch.zeros((), dtype=q1.dtype)
    weights, out = ([], []), []
    for b in range(B):
        for h in range(H):
            kv = h // (H // k1.shape[1])
            for i in range(T):
                n = int(visible[b, i].sum())
                tau = beta * math.sqrt(2 * math.log(max(n, 1)) / d)
                rows = []
                for m, (q, k) in enumerate(((q1, k1), (q2, k2))):
                    one, row = q[b, h, i], []
                    for j in range(T):
                        other = k[b, kv, j]
                        cosine = (one @ other) / (one.norm() * other.norm())
                        live = visible[b, i, j] and cosine > tau
                        row.append((cosine - tau) ** power if live else zero)
                    rows.append(torch.stack(row))
                    weights[m].append(rows[m])
                out.append((rows[0] - lam[0, h, 0, 0] * rows[1]) @ v[b, kv])
    maps = [torch.stack(w).view(B, H, T, T) for w in weights]
    return torch.stack(out).view(B, H, T, -1), maps


DOCUMENTS = torch.tensor([[0] * 4 + [1] * 7, [0] * 9 + [2] * 2])
SAME = DOCUMENTS[:, :, None] == DOCUMENTS[:, None]
CAUSAL = torch.ones(2, 11, 11).tril().bool()
PADDING = torch.ones(2, 11, dtype=torch.bool)
PADDING[0, :4] = False
CASES = {
    "full": ({}, torch.ones(2, 11, 11, dtype=torch.bool)),
    "causal": ({"causal": True}, CAUSAL),
    "padded": (
        {"causal": True, "mask": PADDING[:, None, None]},
        CAUSAL & PADDING[:, None],
    ),
    "packed": ({"causal": True, "documents": DOCUMENTS}, CAUSAL & SAME),
    "window": ({"causal": True, "window": 3}, CAUSAL & ~CAUSAL.tril(-3)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("beta", "power"), [(0.3, 2.0), (0.0, 1.0), (0.5, 3.0)])
def test_output_maps_and_gradients_are_those_of_the_formula(case, beta, power):
    options, visible = CASES[case]
    leaves = [t.requires_grad_() for t in inputs()]
    got = threshold_attention(*leaves, beta=beta, power=power, **options)
    want, maps = direct(*leaves, visible, beta, power)
    torch.testing.assert_close(got, want)
    found = threshold_maps(*leaves, beta=beta, power=power, **options)
    torch.testing.assert_close((found.A1, found.A2), (maps[0], maps[1]))
    torch.testing.assert_close(found.A, maps[0] - leaves[5] * maps[1])
    upstream = torch.randn_like(want)
    expected = torch.autograd.grad(want, leaves, upstream)
    torch.testing.assert_close(torch.autograd.grad(got, leaves, upstream), expected)


def test_gradcheck():
    leaves = [t.requires_grad_() for t in inputs(B=1, H=2, Hkv=1, T=4, d=4, dv=3)]
    assert torch.autograd.gradcheck(
        lambda *leaves: threshold_attention(*leaves, beta=0.2, causal=True), leaves
    )


def test_random_rows_are_mostly_dead_and_narrow_heads_all():
    q1, k1, q2, k2, v, lam = inputs(B=4, H=8, Hkv=8, T=80, d=32)
    visible = torch.ones(4, 80, 80).tril().bool()
    A = threshold_maps(q1, k1, q2, k2, v, lam, causal=True).A
    dead = sparsity.dead(A, visible)[..., 40:].mean()
    assert 0.6 < dead < 0.95
    assert sparsity.fraction_zero(A, visible)[..., 40:].mean() > 0.98
    q1, k1, q2, k2, v, lam = inputs(B=1, T=80, d=8)
    A = threshold_maps(q1, k1, q2, k2, v, lam, causal=True).A  # from 56 keys on, tau is above 1
    assert (sparsity.dead(A, visible[:1])[..., 55:] == 1).all()


def test_a_row_without_keys_gives_zeros_and_finite_gradients():
    leaves = [t.requires_grad_() for t in inputs()]
    mask = torch.zeros(11, 11, dtype=torch.float64).masked_fill(
        ~torch.ones(11, 11).tril(-1).bool(), -torch.inf
    )
    out = threshold_attention(*leaves, beta=0.2, mask=mask)
    assert (out[:, :, 0] == 0).all()
    grads = torch.autograd.grad(out.square().sum(), leaves)
    assert all(g.isfinite().all() for g in grads)
    lowest = mask.clamp_min(torch.finfo(torch.float64).min)
    torch.testing.assert_close(threshold_attention(*leaves, beta=0.2, mask=lowest), out)


@pytest.mark.parametrize("values", [{"beta": -1.0}, {"power": 0.5}, {"beta": math.nan}])
def test_values_out_of_range_raise(values):
    with pytest.raises(ValueError, match="expected beta of at least 0 and power of at least 1"):
        threshold_attention(*inputs(), **values)
