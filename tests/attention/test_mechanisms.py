"""What holds for every mechanism, by itself and without a model around it."""

import pytest
import torch

from antiphase.attention import MECHANISMS
from antiphase.attention.heads import Inputs
from antiphase.ops import repeat_heads, rotary_table
from tests.attention.cases import NAMES, SMALL, small, tokens

each = pytest.mark.parametrize("name", NAMES)
grouping = pytest.mark.parametrize("kv_heads", [8, 4], ids=["mha", "gqa"])
order = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])


def padding(B: int = 2, T: int = 21) -> torch.Tensor:
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[0, :4] = False
    return mask


def heads_of(layer, x, context=None):
    rotary = layer._own_rotary(x, context, None)
    return layer.project(Inputs(x, x if context is None else context, rotary, rotary, None))


@each
@grouping
@order
@pytest.mark.parametrize("mask", [None, padding()], ids=["whole", "padded"])
def test_maps_times_v_are_each_heads_output(name, kv_heads, causal, mask):
    layer, x = small(name, kv_heads, rope_theta=1e4), tokens()
    heads = heads_of(layer, x)
    mask = None if mask is None else mask[:, None, None, :]
    o = layer.mix(heads, causal=causal, mask=mask, backend="auto")
    A = layer.maps(heads, causal=causal, mask=mask)["difference"]
    torch.testing.assert_close(o, A @ repeat_heads(heads.v, A.shape[1]), atol=2e-6, rtol=1e-5)


@each
@order
def test_rows_of_signal_and_noise_sum_to_one(name, causal):
    _, maps = small(name)(tokens(), causal=causal, return_maps=True)
    for kind in {"signal", "noise"} & maps.keys():
        sums = maps[kind].sum(-1)
        if name == "sink":
            assert (sums < 1).all()
            assert (sums > 0).all()
        else:
            torch.testing.assert_close(sums, torch.ones_like(sums), atol=1e-5, rtol=0)
        assert (maps[kind] >= 0).all()


@each
@order
def test_the_difference_is_made_of_its_parts(name, causal):
    _, maps = small(name)(tokens(), causal=causal, return_maps=True)
    A = maps["signal"]
    if "noise" in maps:
        assert maps["lam"].shape == (*A.shape[:3], 1)
        A = A - maps["lam"] * maps["noise"]
    elif "sign" in maps:
        assert maps["sign"].abs().max() <= 1
        A = A * maps["sign"]
    torch.testing.assert_close(maps["difference"], A)
    if causal:
        assert all((m.triu(1) == 0).all() for k, m in maps.items() if k not in ("lam", "sign"))


@each
def test_the_backends_agree_in_output_and_gradients(name):
    x = tokens()
    found = {}
    for backend in ("reference", "auto", "sdpa"):
        layer = small(name, 4, rope_theta=1e4)
        inputs = x.clone().requires_grad_()
        out = layer(inputs, causal=True, mask=padding(), backend=backend)
        out.square().sum().backward()
        found[backend] = [out, inputs.grad, *(p.grad for p in layer.parameters())]
    for backend in ("auto", "sdpa"):
        for got, want in zip(found[backend], found["reference"], strict=True):
            torch.testing.assert_close(got, want, atol=5e-5, rtol=1e-4)


@each
def test_gradients_are_those_of_the_formula(name):
    layer = MECHANISMS[name](16, 4, **{**SMALL.get(name, {}), "rope_theta": 1e2}).double()
    x = tokens(1, 5, 16, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, *_: layer(x, causal=True, backend="reference"), (x, *layer.parameters())
    )


@each
def test_cross_attention_reads_another_text(name):
    layer, x, context = small(name), tokens(T=9), tokens(T=21)
    out = layer(x, context)
    assert out.shape == (2, 9, 64)
    swapped = torch.cat([context[:, 10:], context[:, :10]], dim=1)
    torch.testing.assert_close(layer(x, swapped), out, atol=1e-5, rtol=1e-4)  # a set, no order
    cut = padding(T=21)
    torch.testing.assert_close(
        layer(x, context, mask=cut)[:1], layer(x[:1], context[:1, 4:]), atol=1e-5, rtol=1e-4
    )
    with pytest.raises(ValueError, match="a context has no order"):
        layer(x, context, causal=True)


@each
def test_rope_makes_it_see_order_and_only_differences_of_position(name):
    plain, turned = small(name), small(name, rope_theta=1e4)
    x = tokens(1, 12)
    back = torch.arange(11, -1, -1)
    torch.testing.assert_close(plain(x[:, back])[:, back], plain(x), atol=1e-5, rtol=1e-4)
    if name != "fixed_noise":  # its noise is a set, its signal is not
        assert not torch.allclose(turned(x[:, back])[:, back], turned(x), atol=1e-4)
    later = {w: [t[:, 30:42] for t in rotary_table(50, w)] for w in turned.rotary_widths}
    torch.testing.assert_close(
        turned(x, causal=True, rotary=later), turned(x, causal=True), atol=1e-4, rtol=1e-4
    )


@each
def test_positions_of_a_context_are_the_callers(name):
    with pytest.raises(ValueError, match="rotary: with a context"):
        small(name, rope_theta=1e4)(tokens(), tokens())


@each
def test_a_layer_shows_its_heads(name):
    assert "heads=" in repr(small(name))


@each
def test_sixteen_bits_keep_lambdas_gains_and_logits_in_fp32(name):
    layer = small(name).to(torch.bfloat16)
    matrices = [p for p in layer.parameters() if p.dim() == 2]
    vectors = [p for p in layer.parameters() if p.dim() < 2]
    assert all(p.dtype == torch.bfloat16 for p in matrices)
    assert all(p.dtype == torch.float32 for p in vectors)
    exact = small(name)
    got = layer(tokens().bfloat16(), causal=True)
    assert got.dtype == torch.bfloat16
    if name != "top_k":  # rounding may choose other keys
        torch.testing.assert_close(got.float(), exact(tokens(), causal=True), atol=0.05, rtol=0.05)


def test_a_running_noise_branch_refuses_masks_that_differ_by_query():
    square = torch.ones(21, 21, dtype=torch.bool)[None, None]
    for name in ("low_rank_noise", "fixed_noise"):
        with pytest.raises(ValueError, match="only a boolean padding mask"):
            small(name)(tokens(), mask=square)


@each
def test_cross_attention_with_positions_of_its_own(name):
    layer, x, context = small(name, rope_theta=1e4), tokens(T=4), tokens(T=9)
    rotary = {w: rotary_table(4, w) for w in layer.rotary_widths}
    keys = {w: rotary_table(9, w) for w in layer.rotary_widths}
    out = layer(x, context, rotary=rotary, context_rotary=keys)
    both = {w: rotary_table(9, w) for w in layer.rotary_widths}
    filled = torch.cat([x, torch.zeros(2, 5, 64)], dim=1)
    whole = layer(filled, context, rotary=both)
    torch.testing.assert_close(out, whole[:, :4], atol=1e-5, rtol=1e-4)


@each
def test_additive_masks_bias_and_hide(name):
    if name in ("low_rank_noise", "fixed_noise"):
        return  # padding only, and tested to refuse
    layer, x = small(name, **({"k": 100} if name == "top_k" else {})), tokens()
    hidden = torch.zeros(21, 21).masked_fill(~torch.ones(21, 21).tril().bool(), -torch.inf)
    floor = hidden.clamp_min(torch.finfo(torch.float32).min)
    want = layer(x, causal=True)
    for mask in (hidden, floor):
        torch.testing.assert_close(layer(x, mask=mask[None, None]), want, atol=1e-5, rtol=1e-4)
    bias = -3 * torch.rand(1, 1, 21, 21)
    assert not torch.allclose(layer(x, mask=bias), layer(x), atol=1e-3)
    reference = layer(x, mask=bias, backend="reference")
    torch.testing.assert_close(layer(x, mask=bias), reference, atol=1e-5, rtol=1e-4)


@each
def test_masks_that_could_be_read_in_two_ways_are_refused(name):
    layer, x = small(name), tokens()
    ones = torch.ones(2, 21, dtype=torch.bool)
    for mask, message in {
        ones.long(): "got torch.int64, expected bool",
        ones.float(): "expected bool .B, Tk. = .2, 21.",
        ones[:, None].expand(2, 21, 21): "or 4 dimensions that broadcast",
        ones[:, :7]: "of shape .2, 7., expected bool",
    }.items():
        with pytest.raises(ValueError, match=message):
            layer(x, mask=mask)


@each
def test_fine_numbers_are_fp32_however_a_layer_is_made(name):
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        made = small(name)
    finally:
        torch.set_default_dtype(default)
    for layer in (made, small(name).double().bfloat16()):
        for p in layer.parameters():
            assert p.dtype == (torch.bfloat16 if p.dim() == 2 else torch.float32)


@each
def test_an_empty_batch_gives_an_empty_batch(name):
    for causal in (True, False):
        assert small(name)(torch.randn(0, 5, 64), causal=causal).shape == (0, 5, 64)


@each
def test_second_derivatives_on_the_reference(name):
    if name == "top_k":
        return  # its choice of keys has steps
    layer = MECHANISMS[name](16, 4, **{**SMALL.get(name, {}), "rope_theta": 1e2}).double()
    x = tokens(1, 4, 16, torch.float64).requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda x: layer(x, causal=True, backend="reference").square(), (x,)
    )
