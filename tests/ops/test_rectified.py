"""Rectified attention: max(A1 - lam A2, 0) applied to V, with rows of any sum or of sum 1."""

import pytest
import torch

from antiphase import diff_attention
from antiphase.ops import rectified_attention, rectify
from tests.ops.cases import GENERAL, NATIVE, Case, run

both = pytest.mark.parametrize("normalise", [False, True], ids=["rectified", "simplex"])


def inputs_of(case: Case, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Draw inputs with lam in [0.5, 2]: many negative weights, and rows without a positive one."""
    torch.manual_seed(0)
    *tensors, lam = case.inputs(dtype)
    return [*tensors, 0.5 + 1.5 * lam]


def direct(q1, k1, q2, k2, v, lam, *, normalise, causal=False, hidden=None):
    """Compute the formula with every head repeated; `hidden` [Tq, Tk] is True at masked keys."""
    H, Tq, Tk = q1.shape[1], q1.shape[2], k1.shape[2]
    keys = [k.repeat_interleave(q.shape[1] // k.shape[1], 1) for q, k in ((q1, k1), (q2, k2))]
    hidden = torch.zeros(Tq, Tk, dtype=torch.bool) if hidden is None else hidden
    if causal:
        hidden = hidden | torch.ones(Tq, Tk).triu(Tk - Tq + 1).bool()
    A = []
    for q, k in zip((q1, q2), keys, strict=True):
        e = (torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5).exp()
        e = e.masked_fill(hidden, 0.0)
        A.append(
            (e / e.sum(-1, keepdim=True).clamp_min(1e-300)).repeat_interleave(H // e.shape[1], 1)
        )
    A = A[0] - lam * A[1]
    A = torch.where(A > 0, A, 0.0)
    if normalise:
        A = A / A.sum(-1, keepdim=True).clamp_min(1e-12)
    return A @ v.repeat_interleave(H // v.shape[1], 1)


@both
@pytest.mark.parametrize("case", [c for c in NATIVE + GENERAL if c.Tq < 100], ids=str)
def test_output_and_gradients_are_those_of_the_formula(case, normalise):
    inputs, options = inputs_of(case), {"normalise": normalise, "causal": case.causal}
    for got, want in zip(
        run(rectified_attention, inputs, **options), run(direct, inputs, **options), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@both
def test_masks_hide_keys_and_an_empty_row_gives_zeros(normalise):
    inputs = inputs_of(Case(H=4, Hkv=2, Tq=12))
    attend = torch.rand(12, 12, generator=torch.Generator().manual_seed(0)) < 0.6
    attend[5] = False
    want = run(direct, inputs, normalise=normalise, hidden=~attend)
    additive = torch.zeros(12, 12, dtype=torch.float64).masked_fill(~attend, -torch.inf)
    for mask in (attend, additive):
        got = run(rectified_attention, inputs, normalise=normalise, mask=mask)
        assert (got[0][:, :, 5] == 0).all()
        for found, expected in zip(got, want, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@both
def test_numerical_gradients(normalise):
    inputs = [t.requires_grad_() for t in inputs_of(Case(H=2, Hkv=1, Tq=4, d=3, dv=2))]
    assert torch.autograd.gradcheck(
        lambda *t: rectified_attention(*t, normalise=normalise, causal=True), inputs
    )


def test_rows_sum_to_one_or_are_zero():
    torch.manual_seed(0)
    A1, A2 = (torch.randn(2, 3, 40, 40).softmax(-1) for _ in range(2))
    lam = torch.linspace(0.2, 8, 40)[:, None]
    A = A1 - lam * A2
    P = rectify(A, normalise=True)
    sums, any_positive = P.sum(-1), (A > 0).any(-1)
    assert any_positive.any()
    assert not any_positive.all()
    torch.testing.assert_close(sums, any_positive.float())
    torch.testing.assert_close(P * A.clamp_min(0).sum(-1, keepdim=True), A.clamp_min(0))
    assert torch.equal(rectify(A), A.clamp_min(0))


@both
@pytest.mark.parametrize("lam", [1.0, 1.7])
def test_without_a_positive_weight_output_and_gradients_are_zero(lam, normalise):
    q1, k1, _, _, v, _ = inputs_of(Case(Tq=9), torch.float32)
    leaves = [t.requires_grad_() for t in (q1, k1, v)]
    out = rectified_attention(q1, k1, q1, k1, v, lam, normalise=normalise)  # A = (1 - lam) A1
    assert (out == 0).all()
    assert all((g == 0).all() for g in torch.autograd.grad(out.sum(), leaves))


def test_weights_of_the_size_of_rounding_errors_are_not_normalised():
    A = torch.tensor([[1e-9, -0.5], [1e-5, -0.5]], requires_grad=True)
    P = rectify(A, normalise=True)
    assert P.tolist() == [[0.0, 0.0], [1.0, 0.0]]
    (gradient,) = torch.autograd.grad(P[:, 0].sum(), A)
    assert (gradient[0] == 0).all()


@both
def test_16_bits_and_autocast_keep_the_map_in_fp32(normalise):
    exact = [t.bfloat16().double() for t in inputs_of(Case(H=4, Hkv=2, Tq=20))]
    want = direct(*exact, normalise=normalise, causal=True)
    narrow = [*(t.bfloat16() for t in exact[:-1]), exact[-1].float()]
    got = rectified_attention(*narrow, normalise=normalise, causal=True)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), want, rtol=0.005, atol=1e-5)  # of the output alone
    inputs = [t.float() for t in exact]
    outside = rectified_attention(*inputs, normalise=normalise, causal=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(rectified_attention(*inputs, normalise=normalise, causal=True), outside)


def test_lam_zero_is_the_signal_map():
    inputs = inputs_of(Case(Tq=11))
    inputs[-1] = 0.0
    want = diff_attention(*inputs, causal=True, backend="reference")
    for normalise in (False, True):
        got = rectified_attention(*inputs, normalise=normalise, causal=True)
        torch.testing.assert_close(got, want)


def test_lam_is_required():
    inputs = inputs_of(Case())
    with pytest.raises(ValueError, match="lam: got None"):
        rectified_attention(*inputs[:-1], None)
