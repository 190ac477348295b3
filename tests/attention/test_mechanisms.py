"""What holds for every mechanism as a layer, without a model around it."""

import pytest
import torch

from antiphase.attention import MECHANISMS
from antiphase.attention.heads import Inputs
from antiphase.attention.parts import Float32Parameters
from antiphase.attention.recurrence import init_recurrence
from antiphase.ops import repeat_heads, rotary_table
from tests.attention.cases import INDEPENDENT, MAPPED, NAMES, SMALL, small, tokens

each = pytest.mark.parametrize("name", NAMES)
each_mapped = pytest.mark.parametrize("name", MAPPED)
each_independent = pytest.mark.parametrize("name", INDEPENDENT)
grouping = pytest.mark.parametrize("kv_heads", [8, 4], ids=["mha", "gqa"])
# Numerical gradients cost a forward pass per weight: the narrow layer stands for the wide one.
widths = pytest.mark.parametrize("width", [8, pytest.param(16, marks=pytest.mark.slow)])
UNNORMALISED = {
    "threshold": "weights are powers of cosines, and no row is divided by its sum",
    "delta": "a state holds differences of values, and no row is divided by its sum",
}
RUNNING = [name for name in NAMES if MECHANISMS[name].running_state]
order = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])


def skip_unordered(name: str) -> None:
    if MECHANISMS[name].causal_only:
        pytest.skip("reads tokens in their order: no calls without causal=True, no context")


def padding(B: int = 2, T: int = 21) -> torch.Tensor:
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[0, :4] = False
    return mask


def tiny(name: str, width: int) -> torch.nn.Module:
    """Return a layer of 4 heads in fp64, for numerical gradients."""
    torch.manual_seed(0)
    options = {**SMALL.get(name, {}), "rope_theta": 1e2}
    if width == 8 and name == "low_dim_noise":
        options["rank"] = 2
    return MECHANISMS[name](width, 4, **options).double()


def heads_of(layer, x, context=None):
    rotary = layer._default_rotary(x, context, None)
    return layer.project(Inputs(x, x if context is None else context, rotary, rotary, None))


@each_mapped
@grouping
@order
@pytest.mark.parametrize("mask", [None, padding()], ids=["unpadded", "padded"])
def test_the_difference_applied_to_v_is_each_heads_output(name, kv_heads, causal, mask):
    if not causal:
        skip_unordered(name)
    layer, x = small(name, kv_heads, rope_theta=1e4), tokens()
    heads = heads_of(layer, x)
    mask = None if mask is None else mask[:, None, None, :]
    masking = layer.masking(causal=causal, mask=mask)
    o = layer.attend(heads, masking, backend="auto")
    A = layer.maps(heads, masking)["difference"]
    torch.testing.assert_close(o, A @ repeat_heads(heads.v, A.shape[1]), atol=2e-6, rtol=1e-5)


@each_mapped
@order
def test_rows_of_signal_and_noise_sum_to_one(name, causal):
    if name in UNNORMALISED:
        pytest.skip(UNNORMALISED[name])
    _, maps = small(name)(tokens(), causal=causal, return_maps=True)
    for kind in {"signal", "noise"} & maps.keys():
        sums = maps[kind].sum(-1)
        if name == "sink":
            assert (sums < 1).all()
            assert (sums > 0).all()
        else:
            torch.testing.assert_close(sums, torch.ones_like(sums), atol=1e-5, rtol=0)
        assert (maps[kind] >= 0).all()


@each_mapped
@order
def test_the_difference_is_made_of_its_parts(name, causal):
    if not causal:
        skip_unordered(name)
    layer = small(name)
    _, maps = layer(tokens(), causal=causal, return_maps=True)
    A = maps["signal"]
    if "noise" in maps:
        assert maps["lam"].shape == (*A.shape[:3], 1)
        A = layer.applied_map(maps)
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


@each_independent
@widths
def test_gradients_are_those_of_the_formula(name, width):
    layer = tiny(name, width)
    x = tokens(1, 5, width, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, *_: layer(x, causal=True, backend="reference"), (x, *layer.parameters())
    )


@each_independent
def test_cross_attention_attends_to_the_context(name):
    skip_unordered(name)
    layer, x, context = small(name), tokens(T=9), tokens(T=21)
    out = layer(x, context)
    assert out.shape == (2, 9, 64)
    swapped = torch.cat([context[:, 10:], context[:, :10]], dim=1)
    torch.testing.assert_close(layer(x, swapped), out, atol=1e-5, rtol=1e-4)  # order-free
    cut = padding(T=21)
    torch.testing.assert_close(
        layer(x, context, mask=cut)[:1], layer(x[:1], context[:1, 4:]), atol=1e-5, rtol=1e-4
    )
    with pytest.raises(ValueError, match="a context has no order"):
        layer(x, context, causal=True)


@each
def test_rope_depends_on_relative_positions_alone(name):
    skip_unordered(name)
    plain, rotated = small(name), small(name, rope_theta=1e4)
    x = tokens(2, 12)
    back = torch.arange(11, -1, -1)
    torch.testing.assert_close(plain(x[:, back])[:, back], plain(x), atol=1e-5, rtol=1e-4)
    if rotated.rotary_widths and name != "fixed_noise":  # its noise ignores order
        assert not torch.allclose(rotated(x[:, back])[:, back], rotated(x), atol=1e-4)
    later = {w: [t[:, 30:42] for t in rotary_table(50, w)] for w in rotated.rotary_widths}
    torch.testing.assert_close(
        rotated(x, causal=True, rotary=later), rotated(x, causal=True), atol=1e-4, rtol=1e-4
    )


@each
def test_a_context_needs_rotary_from_the_caller(name):
    skip_unordered(name)
    with pytest.raises(ValueError, match="rotary: with a context"):
        small(name, rope_theta=1e4)(tokens(), tokens())


@each
def test_a_layer_shows_its_heads(name):
    assert "heads=" in repr(small(name))


@each
def test_casting_to_bf16_keeps_lambdas_gains_and_logits_in_fp32(name):
    layer = small(name).to(torch.bfloat16)
    named = [(n, p) for n, p in layer.named_parameters() if not n.startswith("rnn.bias")]
    matrices = [p for _, p in named if p.dim() == 2]
    vectors = [p for _, p in named if p.dim() < 2]
    assert all(p.dtype == torch.bfloat16 for p in matrices)
    assert all(p.dtype == torch.float32 for p in vectors)
    exact = small(name)
    got = layer(tokens().bfloat16(), causal=True)
    assert got.dtype == torch.bfloat16
    if name != "top_k":  # rounding may choose other keys
        torch.testing.assert_close(got.float(), exact(tokens(), causal=True), atol=0.05, rtol=0.05)


def test_running_noise_rejects_masks_that_differ_by_query():
    square = torch.ones(21, 21, dtype=torch.bool)[None, None]
    for name in RUNNING:
        with pytest.raises(ValueError, match="only a boolean padding mask"):
            small(name)(tokens(), mask=square, causal=MECHANISMS[name].causal_only)


@each
def test_cross_attention_with_rotary_of_the_context(name):
    if not MECHANISMS[name].row_by_row:
        pytest.skip("a row depends on the other queries, so longer ones are others")
    layer, x, context = small(name, rope_theta=1e4), tokens(T=4), tokens(T=9)
    rotary = {w: rotary_table(4, w) for w in layer.rotary_widths}
    keys = {w: rotary_table(9, w) for w in layer.rotary_widths}
    out = layer(x, context, rotary=rotary, context_rotary=keys)
    both = {w: rotary_table(9, w) for w in layer.rotary_widths}
    extended = torch.cat([x, torch.zeros(2, 5, 64)], dim=1)
    longer = layer(extended, context, rotary=both)
    torch.testing.assert_close(out, longer[:, :4], atol=1e-5, rtol=1e-4)


@each
def test_additive_masks_bias_and_hide(name):
    if name in RUNNING:
        pytest.skip("padding masks only; the rejection is tested above")
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
def test_ambiguous_masks_are_rejected(name):
    layer, x = small(name), tokens()
    ones = torch.ones(2, 21, dtype=torch.bool)
    for mask, message in {
        ones.long(): "got torch.int64, expected bool",
        ones.float(): "expected bool .B, Tk. = .2, 21.",
        ones[:, None].expand(2, 21, 21): "or 4 dimensions that broadcast",
        ones[:, :7]: "of shape .2, 7., expected bool",
    }.items():
        with pytest.raises(ValueError, match=message):
            layer(x, mask=mask, causal=layer.causal_only)


@each
def test_lambdas_gains_and_logits_are_fp32_however_a_layer_is_created(name):
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        created = small(name)
    finally:
        torch.set_default_dtype(default)
    for layer in (created, small(name).double().bfloat16()):
        for n, p in layer.named_parameters():
            narrow = p.dim() == 2 or n.startswith("rnn.bias")  # biases are as in `nn.Linear`
            assert p.dtype == (torch.bfloat16 if narrow else torch.float32)


@each
def test_an_empty_batch_gives_an_empty_batch(name):
    for causal in (True,) if MECHANISMS[name].causal_only else (True, False):
        assert small(name)(torch.randn(0, 5, 64), causal=causal).shape == (0, 5, 64)


@each_independent
@widths
def test_second_derivatives_on_the_reference(name, width):
    if name == "top_k":
        return  # its choice of keys is not continuous
    layer = tiny(name, width)
    x = tokens(1, 4, width, torch.float64).requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda x: layer(x, causal=True, backend="reference").square(), (x,)
    )


@each
def test_autocast_rounds_the_projections_alone(name):
    fields = {"k": 100} if name == "top_k" else {}  # rounding may choose other keys
    layer, x = small(name, 4, rope_theta=1e4, **fields), tokens()
    with_maps = {"causal": True, "return_maps": layer.has_maps}
    out, maps = layer(x, **with_maps) if layer.has_maps else (layer(x, **with_maps), {})
    with torch.autocast("cpu", torch.bfloat16):
        got = layer(x, **with_maps)
    got, got_maps = got if layer.has_maps else (got, {})
    # The norm enlarges the error of rows whose few weights just exceed the threshold.
    atol = 0.1 if name == "threshold" else 0.02
    torch.testing.assert_close(got.float(), out, atol=atol, rtol=0.05)
    assert got_maps.keys() == maps.keys()
    for kind, A in got_maps.items():
        assert A.dtype == torch.float32, kind
        torch.testing.assert_close(A, maps[kind], atol=0.02, rtol=0.05)
    got.float().square().sum().backward()
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


@each
def test_every_parameter_can_be_initialised_again(name):
    layer = small(name)
    fresh = {n: p.detach().clone() for n, p in layer.named_parameters()}
    torch.nn.utils.vector_to_parameters(
        torch.full((sum(p.numel() for p in layer.parameters()),), torch.nan), layer.parameters()
    )
    for part in layer.modules():
        if isinstance(part, Float32Parameters):
            part.init_parameters()
        elif isinstance(part, torch.nn.Linear):
            part.reset_parameters()  # models draw from N(0, initializer_range) instead
        elif isinstance(part, torch.nn.RNNBase):
            init_recurrence(part)
    for n, p in layer.named_parameters():  # any other parameter would still be NaN
        torch.testing.assert_close(p.detach(), fresh[n], atol=1.0, rtol=0, msg=n)


def test_parameters_in_fp32_without_initial_values_are_rejected():
    with pytest.raises(TypeError, match="init_parameters"):
        type("NoValues", (Float32Parameters,), {})()


@pytest.mark.parametrize("name", [n for n in NAMES if MECHANISMS[n].causal_only])
def test_what_reads_tokens_in_order_rejects_full_calls_and_contexts(name):
    for call in ({}, {"context": tokens()}):
        with pytest.raises(ValueError, match=f"causal: {name} reads tokens in their order"):
            small(name)(tokens(), **call)
