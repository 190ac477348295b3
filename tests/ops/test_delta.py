"""The gated delta rule by chunks against its recurrence: outputs, gradients, states, padding."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase.ops import delta_map, delta_rule, delta_rule_recurrent, repeat_heads
from tests.peers import fla_naive


def inputs(B=2, H=4, Hkv=2, T=100, d=5, dv=6, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    random = {"generator": g, "dtype": torch.float64}
    q, k = torch.randn(B, H, T, d, **random), torch.randn(B, Hkv, T, d, **random)
    v = torch.randn(B, Hkv, T, dv, **random)
    beta = torch.rand(B, Hkv, T, **random)
    decay = -torch.rand(B, Hkv, T, **random) * torch.logspace(-1.3, 0.3, Hkv)[:, None]
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return [t.to(dtype) for t in (q, k, v, beta, decay)]


def marks(T, B=2):
    """Return a padding mask and the starts of documents, different in each row."""
    keys = torch.ones(B, T, dtype=torch.bool)
    keys[0, : T // 4] = False
    starts = torch.zeros(B, T, dtype=torch.bool)
    starts[0, T // 2] = starts[1, T // 3] = starts[1, T - 1] = True
    return keys, starts


@pytest.mark.parametrize("T", [1, 2, 31, 32, 33, 100])
@pytest.mark.parametrize("padded", [False, True], ids=["unpadded", "padded"])
@pytest.mark.parametrize("packed", [False, True], ids=["one", "packed"])
def test_chunks_are_the_recurrence_in_outputs_gradients_and_states(T, padded, packed):
    leaves = [t.requires_grad_() for t in inputs(T=T)]
    state = torch.randn(2, 2, 5, 6, dtype=torch.float64, requires_grad=True)
    keys, starts = marks(T)
    options = {"keys": keys if padded else None, "starts": starts if packed else None}
    got = delta_rule(*leaves, state=state, **options)
    want = delta_rule_recurrent(*leaves, state=state, **options)
    torch.testing.assert_close(got, want)
    upstream = [torch.randn_like(t) for t in want]
    found, expected = (
        torch.autograd.grad(result, [*leaves, state], upstream) for result in (got, want)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("T", [1, 40])
def test_the_map_applied_to_v_is_the_output(T):
    q, k, v, beta, decay = inputs(T=T)
    keys, starts = marks(T)
    for options in ({}, {"keys": keys}, {"keys": keys, "starts": starts}):
        A = delta_map(q, k, beta, decay, **options)
        out, _ = delta_rule_recurrent(q, k, v, beta, decay, **options)
        torch.testing.assert_close(A @ repeat_heads(v, 4), out)
        assert (A.triu(1) == 0).all()


@settings(deadline=None, max_examples=25)
@given(cuts=st.lists(st.integers(0, 100), max_size=6))
def test_any_split_of_the_sequence_gives_the_same(cuts):
    tensors = inputs()
    keys, starts = marks(100)
    outs, state = [], None
    for a, b in itertools.pairwise(sorted({0, 100, *cuts})):
        piece = [t[:, :, a:b] for t in tensors]
        out, state = delta_rule(*piece, keys=keys[:, a:b], starts=starts[:, a:b], state=state)
        outs.append(out)
    want = delta_rule(*tensors, keys=keys, starts=starts)
    torch.testing.assert_close((torch.cat(outs, 2), state), want)


def test_gradcheck():
    leaves = [t.requires_grad_() for t in inputs(B=1, H=2, Hkv=1, T=5, d=3, dv=2)]
    assert torch.autograd.gradcheck(lambda *t: delta_rule(*t), leaves)
    assert torch.autograd.gradgradcheck(lambda *t: delta_rule(*t)[0], leaves)


def test_writing_a_key_again_replaces_its_value():
    k = torch.tensor([[[[1.0, 0], [0, 1], [1, 0]]]])
    v = torch.tensor([[[[2.0], [3], [7]]]])
    one, zero = torch.ones(1, 1, 3), torch.zeros(1, 1, 3)
    out, state = delta_rule(k, k, v, one, zero, scale=1.0)
    assert out.flatten().tolist() == [2, 3, 7]
    assert state.flatten().tolist() == [7, 3]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_keep_the_state_in_fp32(dtype):
    tensors = inputs(dtype=dtype)
    out, state = delta_rule(*tensors)
    assert (out.dtype, state.dtype) == (dtype, torch.float32)
    want, _ = delta_rule(*(t.double() for t in tensors))
    torch.testing.assert_close(out.double(), want, atol=2e-2, rtol=2e-2)


def flipped(t):
    return t.transpose(1, 2)  # [B, heads, T, ...] to fla's [B, T, heads, ...]


@pytest.mark.parametrize("form", ["recurrent", "chunk"])
def test_parity_with_flash_linear_attention(form):
    naive = getattr(fla_naive("gated_delta_rule"), f"naive_{form}_gated_delta_rule")
    q, k, v, beta, decay = inputs(Hkv=4, d=8, dtype=torch.float32)
    state = torch.randn(2, 4, 8, 6)
    fields = {"q": q, "k": k, "v": v, "beta": beta, "g": decay}
    fields = {name: flipped(t) for name, t in fields.items()}
    want, last = naive(**fields, initial_state=state, output_final_state=True)
    got, ours = delta_rule(q, k, v, beta, decay, state=state)
    torch.testing.assert_close(flipped(got), want, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours, last, atol=1e-5, rtol=1e-4)
