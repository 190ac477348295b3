"""Linear-time attention against its materialised maps: outputs, gradients, states, padding."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase.ops import (
    linear_attention,
    linear_map,
    prefix_attention,
    prefix_map,
    repeat_heads,
    rms_norm,
    rotary_table,
    rotate,
)
from tests.peers import fla_naive


def inputs(B=2, H=4, Hkv=2, T=150, r=3, d=5, spread=1.0):
    g = torch.Generator().manual_seed(0)
    random = {"generator": g, "dtype": torch.float64}
    fq, fk = torch.rand(B, H, T, r, **random), torch.rand(B, Hkv, T, r, **random)
    s, v = spread * torch.randn(B, Hkv, T, **random), torch.randn(B, Hkv, T, d, **random)
    keys = torch.ones(B, T, dtype=torch.bool)
    keys[0, : T // 3] = False
    return fq, fk, s, v, keys


def attend_mask(T, keys, causal=True):
    """Return the boolean mask [B, 1, T, T]."""
    square = torch.ones(T, T, dtype=torch.bool)
    return (square.tril() if causal else square[:1]) & keys[:, None, None, :]


@pytest.mark.parametrize("T", [1, 5, 63, 64, 65, 200])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("spread", [1.0, 300.0])
def test_outputs_are_map_times_v(T, causal, spread):
    fq, fk, s, v, keys = inputs(T=T, spread=spread)
    out, _ = linear_attention(fq, fk, v, causal=causal, keys=keys)
    want = linear_map(fq, fk, attend_mask(T, keys, causal)) @ repeat_heads(v, 4)
    torch.testing.assert_close(out, want)
    out, _ = prefix_attention(s, v, causal=causal, keys=keys)
    want = prefix_map(s, T if causal else 1, attend_mask(T, keys, causal)) @ v
    torch.testing.assert_close(out, want)


@settings(deadline=None, max_examples=30)
@given(cuts=st.lists(st.integers(0, 150), max_size=6))
def test_any_split_of_the_sequence_gives_the_same(cuts):
    fq, fk, s, v, keys = inputs(spread=50.0)
    edges = sorted({0, 150, *cuts})
    outs, state, prefix_outs, prefix_state = [], None, [], None
    for a, b in itertools.pairwise(edges):
        here = {"causal": True, "keys": keys[:, a:b]}
        piece = (fq[:, :, a:b], fk[:, :, a:b], v[:, :, a:b])
        out, state = linear_attention(*piece, state=state, **here)
        outs.append(out)
        out, prefix_state = prefix_attention(s[..., a:b], v[:, :, a:b], state=prefix_state, **here)
        prefix_outs.append(out)
    complete, last = linear_attention(fq, fk, v, causal=True, keys=keys)
    torch.testing.assert_close(torch.cat(outs, 2), complete)
    torch.testing.assert_close(state, last)
    complete, last = prefix_attention(s, v, causal=True, keys=keys)
    torch.testing.assert_close(torch.cat(prefix_outs, 2), complete)
    torch.testing.assert_close(prefix_state, last)


def packed(T, lengths):
    """Return where documents of these lengths start [2, T], and their ids; the rows differ."""
    starts = torch.zeros(2, T, dtype=torch.bool)
    starts[0, [t for t in itertools.accumulate(lengths) if t < T]] = True
    starts[1, T // 2] = True
    return starts, starts.cumsum(1)


@pytest.mark.parametrize("T", [1, 5, 32, 64, 150])
@pytest.mark.parametrize("lengths", [[1, 1, 2], [3, 29, 32, 33, 40], [7, 100], [200]], ids=str)
def test_documents_are_those_of_the_maps_and_of_each_document_alone(T, lengths):
    fq, fk, s, v, keys = inputs(T=T, spread=50.0)
    starts, ids = packed(T, lengths)
    options = {"causal": True, "keys": keys, "starts": starts}
    visible = attend_mask(T, keys) & (ids[:, None, :, None] == ids[:, None, None, :])
    linear, state = linear_attention(fq, fk, v, **options)
    torch.testing.assert_close(linear, linear_map(fq, fk, visible) @ repeat_heads(v, 4))
    prefix, prefix_state = prefix_attention(s, v, **options)
    torch.testing.assert_close(prefix, prefix_map(s, T, visible) @ v)
    for one in ids[0].unique():
        here = ids[0] == one
        at = {"causal": True, "keys": keys[:1, here]}
        alone, last = linear_attention(fq[:1, :, here], fk[:1, :, here], v[:1, :, here], **at)
        torch.testing.assert_close(linear[:1, :, here], alone)
        alone, prefix_last = prefix_attention(s[:1, :, here], v[:1, :, here], **at)
        torch.testing.assert_close(prefix[:1, :, here], alone)
    torch.testing.assert_close(state[:1], last)  # of the last document
    torch.testing.assert_close(prefix_state[:1], prefix_last)


@settings(deadline=None, max_examples=30)
@given(
    cuts=st.lists(st.integers(0, 100), max_size=6),
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=8),
)
def test_any_split_of_packed_documents_gives_the_same(cuts, lengths):
    fq, fk, s, v, keys = inputs(T=100)
    starts, _ = packed(100, lengths)
    outs, state, prefix_outs, prefix_state = [], None, [], None
    for a, b in itertools.pairwise(sorted({0, 100, *cuts})):
        here = {"causal": True, "keys": keys[:, a:b], "starts": starts[:, a:b]}
        piece = (fq[:, :, a:b], fk[:, :, a:b], v[:, :, a:b])
        out, state = linear_attention(*piece, state=state, **here)
        outs.append(out)
        out, prefix_state = prefix_attention(s[..., a:b], v[:, :, a:b], state=prefix_state, **here)
        prefix_outs.append(out)
    options = {"causal": True, "keys": keys, "starts": starts}
    complete, last = linear_attention(fq, fk, v, **options)
    torch.testing.assert_close((torch.cat(outs, 2), state), (complete, last))
    complete, last = prefix_attention(s, v, **options)
    torch.testing.assert_close((torch.cat(prefix_outs, 2), prefix_state), (complete, last))


def test_gradients_of_packed_documents_are_numerical():
    fq, fk, s, v, _ = inputs(1, 2, 1, 40, 2, 2)
    fq, fk, s, v = (t.requires_grad_() for t in (fq, fk, s, v))
    options = {"causal": True, "starts": packed(40, [3, 30])[0][:1]}
    assert torch.autograd.gradcheck(lambda *t: linear_attention(*t, **options), (fq, fk, v))
    assert torch.autograd.gradcheck(lambda *t: prefix_attention(*t, **options), (s, v))


def test_documents_without_causal_raise():
    fq, fk, s, v, _ = inputs(T=6)
    starts = torch.zeros(2, 6, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"starts: .* needs causal=True"):
        linear_attention(fq, fk, v, causal=False, starts=starts)
    with pytest.raises(ValueError, match=r"starts: .* needs causal=True"):
        prefix_attention(s, v, causal=False, starts=starts)


def test_a_zeroed_state_is_no_state():
    fq, fk, s, v, _ = inputs()
    _, state = linear_attention(fq, fk, v, causal=True)
    again = linear_attention(fq, fk, v, causal=True, state=torch.zeros_like(state))
    torch.testing.assert_close(again[0], linear_attention(fq, fk, v, causal=True)[0])
    _, state = prefix_attention(s, v, causal=True)
    again = prefix_attention(s, v, causal=True, state=torch.zeros_like(state))
    torch.testing.assert_close(again[0], prefix_attention(s, v, causal=True)[0])


def test_gradients_are_those_of_the_maps():
    fq, fk, s, v, keys = (t[:, :, :70] if t.dim() > 2 else t[:, :70] for t in inputs(1, 2, 1, 70))
    fq, fk, s, v = (t.requires_grad_() for t in (fq, fk, s, v))
    weights = torch.randn(1, 2, 70, 5, dtype=torch.float64)
    fast = linear_attention(fq, fk, v, causal=True, keys=keys)[0]
    slow = linear_map(fq, fk, attend_mask(70, keys)) @ repeat_heads(v, 2)
    got, want = (torch.autograd.grad((o * weights).sum(), (fq, fk, v)) for o in (fast, slow))
    torch.testing.assert_close(got, want)
    fast = prefix_attention(s, v, causal=True, keys=keys)[0]
    slow = prefix_map(s, 70, attend_mask(70, keys)) @ v
    got, want = (torch.autograd.grad((o * weights[:, :1]).sum(), (s, v)) for o in (fast, slow))
    torch.testing.assert_close(got, want)


def test_fully_masked_rows_give_zeros_and_finite_gradients():
    fq, fk, s, v, keys = inputs(T=20)
    keys[0] = False
    s.requires_grad_(), v.requires_grad_()
    for out in (
        linear_attention(fq, fk, v, causal=True, keys=keys)[0],
        prefix_attention(s, v, causal=True, keys=keys)[0],
    ):
        assert (out[0] == 0).all()
        assert out.isfinite().all()
        (out * 2).sum().backward(retain_graph=True)
    assert s.grad.isfinite().all()
    assert v.grad.isfinite().all()


def test_rotation_and_norm_have_first_and_second_derivatives():
    x = torch.randn(2, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    gain = torch.randn(4, dtype=torch.float64, requires_grad=True)
    table = [t.double() for t in rotary_table(3, 4)]
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x: rotate(x, *table), (x,))
        assert check(lambda x, g: rms_norm(x, g, 1e-3), (x, gain))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_is_that_of_pytorch(dtype):
    x, gain = torch.randn(3, 5, 16).to(dtype), torch.randn(16)
    want = torch.nn.functional.rms_norm(x.float(), (16,), gain, 1e-5)
    got = rms_norm(x, gain, 1e-5)
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), want.to(dtype).float())


@pytest.mark.parametrize("causal", [True, False])
def test_autocast_changes_no_output_state_or_map(causal):
    fq, fk, s, v, keys = (t if t.dtype == torch.bool else t.float() for t in inputs(T=40))

    def results():
        linear = linear_attention(fq, fk, v, causal=causal, keys=keys)
        prefix = prefix_attention(s, v, causal=causal, keys=keys)
        return [*linear, *prefix, linear_map(fq, fk), prefix_map(s, 40)]

    want = results()
    with torch.autocast("cpu", torch.bfloat16):
        got = results()
    assert all(torch.equal(t, expected) for t, expected in zip(got, want, strict=True))


@pytest.mark.parametrize("form", ["recurrent", "chunk"])
def test_parity_with_flash_linear_attention(form):
    naive = getattr(fla_naive("linear_attn"), f"naive_{form}_linear_attn")
    g = torch.Generator().manual_seed(0)
    fq, fk = (torch.rand(2, 3, 128, 8, generator=g) for _ in range(2))
    v = torch.randn(2, 3, 128, 6, generator=g)
    want = naive(*(t.transpose(1, 2) for t in (fq, fk, v)), normalize=True)
    want = want if form == "chunk" else want[0]
    got, _ = linear_attention(fq, fk, v, causal=True)
    torch.testing.assert_close(got.transpose(1, 2), want, atol=1e-5, rtol=1e-4)
