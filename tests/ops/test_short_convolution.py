"""The short convolution against loops and PyTorch's own: outputs, gradients, states, padding."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase.ops import short_convolution


def inputs(B=2, H=3, T=23, d=5, K=4, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(B, H, T, d, generator=g, dtype=torch.float64)
    return x.to(dtype), torch.randn(H, d, K, generator=g, dtype=torch.float64).to(dtype)


def marks(T):
    """Return a padding mask with gaps and the starts of documents, different in each row."""
    keys = torch.ones(2, T, dtype=torch.bool)
    keys[0, : T // 4] = keys[1, T // 2 : T // 2 + 2] = keys[1, -1] = False
    starts = torch.zeros(2, T, dtype=torch.bool)
    starts[0, T // 2] = starts[1, T // 3] = starts[1, -1] = True
    return keys, starts


def looped(x, weight, keys=None, starts=None, state=None):
    """Compute it one token after the other; a state is a list of earlier tokens."""
    B, _, T, _ = x.shape
    K = weight.shape[-1]
    y, after = torch.zeros_like(x), []
    for b in range(B):
        seen = [] if state is None else list(state[b].unbind(1))
        for t in range(T):
            if starts is not None and starts[b, t]:
                seen = []
            if keys is not None and not keys[b, t]:
                continue
            seen.append(x[b, :, t])
            for j, token in enumerate(reversed(seen[-K:])):
                y[b, :, t] += weight[..., j] * token
        padded = [torch.zeros_like(x[b, :, 0])] * (K - 1) + seen
        after.append(torch.stack(padded[len(seen) :], 1))
    return y, torch.stack(after)


@pytest.mark.parametrize("T", [1, 2, 3, 4, 23])
@pytest.mark.parametrize("K", [2, 4])
@pytest.mark.parametrize("padded", [False, True], ids=["unpadded", "padded"])
@pytest.mark.parametrize("packed", [False, True], ids=["one", "packed"])
def test_it_is_the_loop_in_outputs_gradients_and_states(T, K, padded, packed):
    x, weight = (t.requires_grad_() for t in inputs(T=T, K=K))
    state = torch.randn(2, 3, K - 1, 5, dtype=torch.float64, requires_grad=True)
    keys, starts = marks(T)
    options = {"keys": keys if padded else None, "starts": starts if packed else None}
    got = short_convolution(x, weight, state=state, **options)
    want = looped(x, weight, state=state, **options)
    torch.testing.assert_close(got, want)
    upstream = [torch.randn_like(t) for t in want]
    found, expected = (
        torch.autograd.grad(result, [x, weight, state], upstream, materialize_grads=True)
        for result in (got, want)
    )
    torch.testing.assert_close(found, expected)


def test_it_is_pytorchs_convolution():
    x, weight = inputs()
    channels = F.pad(x.transpose(2, 3).flatten(1, 2), (3, 0))
    want = F.conv1d(channels, weight.flip(-1).flatten(0, 1)[:, None], groups=15)
    torch.testing.assert_close(short_convolution(x, weight)[0].transpose(2, 3).flatten(1, 2), want)


@settings(deadline=None, max_examples=25)
@given(cuts=st.lists(st.integers(0, 23), max_size=8))
def test_any_split_of_the_sequence_gives_the_same(cuts):
    x, weight = inputs()
    keys, starts = marks(23)
    outs, state = [], None
    for a, b in itertools.pairwise(sorted({0, 23, *cuts})):
        out, state = short_convolution(
            x[:, :, a:b], weight, keys=keys[:, a:b], starts=starts[:, a:b], state=state
        )
        outs.append(out)
    want = short_convolution(x, weight, keys=keys, starts=starts)
    torch.testing.assert_close((torch.cat(outs, 2), state), want)


def test_gradcheck():
    x, weight = inputs(B=2, H=1, T=6, d=2)
    keys, starts = marks(6)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    assert torch.autograd.gradcheck(lambda *t: short_convolution(*t), leaves)
    assert torch.autograd.gradcheck(
        lambda *t: short_convolution(*t, keys=keys, starts=starts), leaves
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_inputs_are_computed_in_fp32(dtype):
    x, weight = inputs(dtype=dtype)
    y, state = short_convolution(x, weight)
    assert y.dtype == state.dtype == torch.float32
    torch.testing.assert_close(y, short_convolution(x.float(), weight.float())[0])
