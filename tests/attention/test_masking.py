"""Windows, documents, dropout and soft-cap of a layer, for every mechanism."""

import pytest
import torch

from antiphase.attention import MECHANISMS
from antiphase.attention.heads import Inputs
from antiphase.ops import dropout_mask, repeat_heads
from tests.attention.cases import INDEPENDENT, MAPPED, NAMES, small, tokens

each = pytest.mark.parametrize("name", NAMES)
each_mapped = pytest.mark.parametrize("name", MAPPED)
each_independent = pytest.mark.parametrize("name", INDEPENDENT)
each_windowed = pytest.mark.parametrize(
    "name", [n for n in NAMES if not MECHANISMS[n].running_state]
)
IDS = torch.tensor([[0] * 7 + [1] * 9 + [0] * 5, [3] + [4] * 12 + [5] * 8])


def run(layer, x, **options):
    """Return the output and the gradient of x for a fixed upstream gradient."""
    x = x.detach().requires_grad_()
    out = layer(x, **options)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    return out.detach(), torch.autograd.grad(out, x, upstream)[0]


@each_windowed
def test_a_window_is_the_mask_of_its_distances(name):
    x = tokens(dtype=torch.float64)
    distance = torch.arange(21)[:, None] - torch.arange(21)
    for window, keep_first in ((1, 0), (5, 0), (3, 2), (2, 6), (30, 0)):
        visible = (distance >= 0) & ((distance < window) | (torch.arange(21) < keep_first))
        layer = small(name, window=window, keep_first=keep_first).double()
        got = run(layer, x, causal=True)
        want = run(small(name).double(), x, mask=visible[None, None])
        torch.testing.assert_close(got, want, atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(run(layer, x, mask=visible[None, None]), want)
        _, maps = layer(x, causal=True, return_maps=True)
        assert (maps["difference"][..., ~visible] == 0).all()


@each_independent
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_documents_do_not_attend_to_each_other(name, causal):
    if MECHANISMS[name].causal_only and not causal:
        pytest.skip("reads tokens in their order: no calls without causal=True")
    layer, x = small(name).double(), tokens(dtype=torch.float64)
    out, gradient = run(layer, x, causal=causal, documents=IDS)
    upstream = torch.randn(
        out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    for row, begin, end in ((0, 0, 7), (0, 7, 16), (0, 16, 21), (1, 0, 1), (1, 1, 13), (1, 13, 21)):
        alone = x[row : row + 1, begin:end].detach().requires_grad_()
        want = layer(alone, causal=causal)
        torch.testing.assert_close(out[row, begin:end], want[0], atol=1e-9, rtol=1e-9)
        (g,) = torch.autograd.grad(want, alone, upstream[row : row + 1, begin:end])
        torch.testing.assert_close(gradient[row, begin:end], g[0], atol=1e-9, rtol=1e-9)


@each_mapped
def test_maps_are_those_of_the_output(name):
    for fields in ({"softcap": 0.2}, {"window": 4, "keep_first": 1}, {}):
        if "window" in fields and MECHANISMS[name].running_state:
            continue
        if "softcap" in fields and not MECHANISMS[name].has_softmax:
            continue
        layer, x = small(name, **fields).double(), tokens(dtype=torch.float64)
        heads = layer.project(Inputs(x, x, {}, {}, None))
        masking = layer.masking(causal=True, documents=IDS)
        A = layer.maps(heads, masking)["difference"]
        want = A @ repeat_heads(heads.v, A.shape[1])
        torch.testing.assert_close(layer.attend(heads, masking, "auto"), want)


@each
def test_dropout_drops_weights_of_the_map_that_is_applied_to_v(name):
    """In training alone, with one mask, also where the noise has no second map."""
    if not MECHANISMS[name].has_maps:
        with pytest.raises(ValueError, match=f"dropout: got 0.4, but {name} has no attention map"):
            small(name, dropout=0.4)
        return
    layer, x = small(name, dropout=0.4).double(), tokens(dtype=torch.float64)
    want = layer.eval()(x, causal=True)
    torch.testing.assert_close(want, small(name).double()(x, causal=True))
    layer.train()
    heads = layer.project(Inputs(x, x, {}, {}, None))
    masking = layer.masking(causal=True)
    torch.manual_seed(5)
    o = layer.attend(heads, masking, "auto")
    torch.manual_seed(5)
    seed = torch.randint(2**63 - 1, ())
    A = layer.maps(heads, masking)["difference"]
    B, h, T, _ = A.shape
    kept = dropout_mask(seed, 0.4, (B, h, T, T))
    want = (A * kept / 0.6) @ repeat_heads(heads.v, h)
    torch.testing.assert_close(o, want, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(o, A @ repeat_heads(heads.v, h), atol=1e-3)


@each
def test_a_soft_cap_bounds_the_softmax(name):
    if not MECHANISMS[name].has_softmax:
        with pytest.raises(ValueError, match=f"softcap: got 1.0, but {name} has no softmax"):
            small(name, softcap=1.0)
        return
    layer, x = small(name, softcap=1e-3), tokens()
    with torch.no_grad():
        _, maps = layer(x, return_maps=True)
    visible = maps["signal"][maps["signal"] > 0]
    assert float(visible.max() / visible.min()) < 1.01  # all scores lie within 0.001 of 0
    free, capped = small(name), small(name, softcap=1e6)
    torch.testing.assert_close(capped(x, causal=True), free(x, causal=True), atol=1e-5, rtol=1e-4)


INVALID = {
    "window": ({"window": 0}, "window: got 0, expected at least 1, or None"),
    "keep_first": ({"keep_first": 3}, "keep_first: got 3 with window=None"),
    "dropout": ({"dropout": 1.0}, "dropout: got 1.0, expected a probability"),
    "softcap": ({"softcap": -1.0}, "softcap: got -1.0, expected a number above 0"),
}


@pytest.mark.parametrize("what", INVALID)
def test_invalid_values_raise(what):
    fields, message = INVALID[what]
    with pytest.raises(ValueError, match=message):
        small("diff_v1", **fields)


@pytest.mark.parametrize("name", [n for n in NAMES if MECHANISMS[n].running_state])
def test_a_running_sum_has_no_window(name):
    with pytest.raises(ValueError, match=f"window: got 4, but {name} keeps a running state"):
        small(name, window=4)


def test_calls_that_mean_nothing_raise():
    layer, x = small("diff_v1", window=4), tokens()
    for mask in (None, torch.ones(2, 21, dtype=torch.bool)):
        with pytest.raises(ValueError, match="causal: got False in a layer with a window of 4"):
            layer(x, mask=mask)
    with pytest.raises(ValueError, match="documents: are those of the tokens x"):
        small("diff_v1")(x, tokens(T=9), documents=IDS)
    with pytest.raises(ValueError, match=r"documents: got torch.int64 of shape \(2, 7\)"):
        small("diff_v1")(x, documents=IDS[:, :7])


def test_a_layer_shows_its_window():
    assert "window=4, keep_first=2, dropout=0.1" in repr(
        small("diff_v1", window=4, keep_first=2, dropout=0.1)
    )
