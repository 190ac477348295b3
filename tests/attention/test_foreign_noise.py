"""`foreign_noise`: the noise map of the next sequence in the batch, or of frozen random weights."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from antiphase.attention import DiffV1, ForeignNoise
from antiphase.ops import rotary_table
from tests.attention.cases import tokens
from tests.models.tiny import left_padded, model, token_ids


def layer_of(**options):
    """Return a layer with pronounced maps, on a baseline of 8 heads, 4 for keys."""
    torch.manual_seed(0)
    layer = ForeignNoise(64, 8, 4, rope_theta=1e4, layer=4, **options).double()
    with torch.no_grad():
        for projection in (layer.q_proj, layer.k_proj, layer.noise_q_proj, layer.noise_k_proj):
            projection.weight.mul_(4 if options.get("form") != "random" else 1)
    return layer


def v1_of(layer):
    """Return V1 with the weights of a foreign_noise layer."""
    v1 = DiffV1(64, 8, 4, rope_theta=1e4, layer=4).double()
    with torch.no_grad():
        for side in "qk":
            pairs = getattr(v1, f"{side}_proj").weight.unflatten(0, (-1, 2, 8))
            for b, name in enumerate((f"{side}_proj", f"noise_{side}_proj")):
                pairs[:, b].copy_(getattr(layer, name).weight.unflatten(0, (-1, 8)))
        for name in ("v_proj", "o_proj", "lam", "norm"):
            getattr(v1, name).load_state_dict(getattr(layer, name).state_dict())
    return v1


@pytest.mark.parametrize("causal", [True, False])
def test_the_noise_map_is_v1s_of_the_next_sequence(causal):
    layer, x = layer_of(), tokens(3, dtype=torch.float64)
    out, maps = layer(x, causal=causal, return_maps=True)
    _, own = v1_of(layer)(x, causal=causal, return_maps=True)
    torch.testing.assert_close(maps["signal"], own["signal"])
    torch.testing.assert_close(maps["noise"], own["noise"][[1, 2, 0]])
    torch.testing.assert_close(maps["difference"], own["signal"] - own["lam"] * maps["noise"])
    v = layer.v_proj(x).view(3, 21, 2, 16).transpose(1, 2).repeat_interleave(2, dim=1)
    o = maps["difference"] @ v
    o = o * (o.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * layer.norm.factor
    torch.testing.assert_close(out, layer.o_proj(o.transpose(1, 2).flatten(2)))


def test_with_equal_sequences_it_is_v1():
    layer = layer_of()
    x = tokens(1, dtype=torch.float64).expand(3, -1, -1)
    torch.testing.assert_close(layer(x, causal=True), v1_of(layer)(x, causal=True))


def test_a_sequence_depends_on_the_next_one_through_the_noise_map_alone():
    layer, x = layer_of(), tokens(4, dtype=torch.float64)
    changed = x.clone()
    changed[2] = tokens(6, dtype=torch.float64)[5]
    before, maps = layer(x, causal=True, return_maps=True)
    after, new_maps = layer(changed, causal=True, return_maps=True)
    assert torch.equal(after[[0, 3]], before[[0, 3]])
    assert (after[1] - before[1]).abs().max() > 0.01
    assert torch.equal(new_maps["signal"][1], maps["signal"][1])
    layer.lam.fixed = 0.0
    torch.testing.assert_close(layer(changed, causal=True)[1], layer(x, causal=True)[1])


def test_no_gradient_reaches_the_next_sequence_but_the_weights_of_its_noise_do_train():
    layer, x = layer_of(), tokens(3, dtype=torch.float64).requires_grad_()
    out = layer(x, causal=True)
    for i in range(3):
        (gradient,) = torch.autograd.grad(out[i].square().sum(), x, retain_graph=True)
        others = [j for j in range(3) if j != i]
        assert (gradient[others] == 0).all()
        assert gradient[i].abs().max() > 0
    out.square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.abs().max() > 0, name


def test_gradients_are_those_of_v1s_parts_with_the_other_sequence_constant():
    layer, x = layer_of(), tokens(2, 6, dtype=torch.float64).requires_grad_()
    other = x.detach().roll(-1, 0)

    def apart(x):
        """Return the layer's output with queries and keys of the noise computed on `other`."""
        d, T = 8, x.shape[1]
        v1 = v1_of(layer)
        names = ("q_proj", "k_proj", "noise_q_proj", "noise_k_proj")
        cos, sin = rotary_table(T, d, 1e4)
        q, k, q2, k2 = (
            (source @ getattr(layer, name).weight.T).view(2, T, -1, d)
            for name, source in zip(names, (x, x, other, other), strict=True)
        )
        half = d // 2
        q, k, q2, k2 = (
            t * cos[:, :, None] + torch.cat([-t[..., half:], t[..., :half]], -1) * sin[:, :, None]
            for t in (q, k, q2, k2)
        )
        scores = [
            torch.einsum("bihd,bjhd->bhij", a, b.repeat_interleave(2, dim=2)) / d**0.5
            for a, b in ((q, k), (q2, k2))
        ]
        future = torch.ones(T, T).triu(1).bool()
        A1, A2 = (s.masked_fill(future, -torch.inf).softmax(-1) for s in scores)
        v = layer.v_proj(x).view(2, T, 2, 2 * d).transpose(1, 2).repeat_interleave(2, dim=1)
        return v1.output((A1 - layer.lam(x) * A2) @ v, None)

    weights = torch.randn(2, 6, 64, dtype=torch.float64)
    trained = [x, layer.q_proj.weight, layer.noise_q_proj.weight, layer.noise_k_proj.weight]
    got, want = layer(x, causal=True), apart(x)
    torch.testing.assert_close(got, want)
    found, expected = (torch.autograd.grad((o * weights).sum(), trained) for o in (got, want))
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two)


def test_positions_go_with_the_sequence():
    layer, x = layer_of(), tokens(2, 9, dtype=torch.float64)
    cos, sin = rotary_table(30, 8, 1e4)
    stretched = [torch.cat([t[:, :9], t[:, 0:27:3]]) for t in (cos, sin)]  # of the second sequence
    _, maps = layer(x, causal=True, rotary={8: stretched}, return_maps=True)
    _, own = v1_of(layer)(x, causal=True, rotary={8: stretched}, return_maps=True)
    torch.testing.assert_close(maps["noise"], own["noise"].flip(0))


def test_a_single_sequence_raises():
    layer = layer_of()
    with pytest.raises(ValueError, match=r"got a batch of 1 sequence.*batches of at least 2"):
        layer(tokens(1, dtype=torch.float64))
    net = model("foreign_noise")
    with pytest.raises(ValueError, match="got a batch of 1 sequence"):
        net.generate(token_ids(1), max_new_tokens=2)


@torch.no_grad()
def test_later_tokens_of_any_sequence_change_nothing():
    net, ids = model("foreign_noise"), token_ids()
    changed = ids.clone()
    changed[:, 10:] = token_ids(seed=5)[:, 10:]
    before, after = net(ids).logits, net(changed).logits
    torch.testing.assert_close(after[:, :10], before[:, :10])
    assert not torch.allclose(after[:, 10:], before[:, 10:], atol=1e-2)


@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize("kv_heads", [8, 4])
def test_frozen_logits_have_standard_deviation_one(width, kv_heads):
    torch.manual_seed(0)
    layer = ForeignNoise(width, 8, kv_heads, form="random", rope_theta=1e4)
    x = tokens(8, 64, width)
    x = x / x.square().mean(-1, keepdim=True).sqrt()
    q, k = (p(x).view(8, 64, -1, width // 8) for p in (layer.noise_q_proj, layer.noise_k_proj))
    k = k.repeat_interleave(8 // kv_heads, dim=2)
    logits = torch.einsum("bihd,bjhd->bhij", q, k) / (width // 8) ** 0.5
    assert logits.std().item() == pytest.approx(1, abs=0.1)
    _, maps = layer(x, return_maps=True)
    entropy = -(maps["noise"].log() * maps["noise"]).sum(-1).mean()
    # of a softmax over N(0, 1) logits: log T - 1/2, up to the T = 64 keys drawn
    assert entropy.item() == pytest.approx(torch.tensor(64.0).log().item() - 0.5, abs=0.1)


def test_random_noise_is_v1_with_frozen_weights():
    layer, x = layer_of(form="random"), tokens(2, dtype=torch.float64).requires_grad_()
    torch.testing.assert_close(layer(x, causal=True), v1_of(layer)(x, causal=True))
    assert not layer.mixes_sequences
    alone = layer(x[:1], causal=True)
    torch.testing.assert_close(alone, layer(x, causal=True)[:1])
    layer(x, causal=True).square().sum().backward()
    frozen = {name for name, p in layer.named_parameters() if p.grad is None}
    assert frozen == {"noise_q_proj.weight", "noise_k_proj.weight"}


def test_both_forms_have_as_many_parameters_as_v1():
    def count(net, **only):
        return net.num_parameters(**only)

    v1 = model("diff_v1")
    random = model("foreign_noise", attention_options={"form": "random"})
    assert count(model("foreign_noise")) == count(v1) == count(random)
    assert random.config.feed_forward_width == v1.config.feed_forward_width
    frozen = 2 * 2 * 64 * 32  # two layers, W_Q2 and W_K2 of 4 heads of width 8
    assert count(random, only_trainable=True) == count(v1) - frozen


@torch.no_grad()
def test_frozen_weights_are_saved_and_stay_frozen(tmp_path):
    net, ids = model("foreign_noise", attention_options={"form": "random"}), token_ids()
    for layer in net.model.attention_layers:  # initializer_range is 0.1
        assert layer.noise_q_proj.weight.std().item() == pytest.approx(64**-0.5, rel=0.1)
    net.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(ids).logits, net(ids).logits)
    trainable = {n for n, p in loaded.named_parameters() if p.requires_grad}
    assert trainable == {n for n, p in net.named_parameters() if p.requires_grad}
    assert not any("noise" in n for n in trainable)
    optimised = {id(p) for group in loaded.parameter_groups(0.1) for p in group["params"]}
    assert optimised == {id(p) for p in loaded.parameters() if p.requires_grad}
    kept = {n: t for n, t in net.state_dict().items() if "noise" not in n}
    net.save_pretrained(tmp_path / "part", state_dict=kept)
    drawn = type(net).from_pretrained(tmp_path / "part").model.attention_layers[0].noise_k_proj
    assert drawn.weight.std().item() == pytest.approx(64**-0.5, rel=0.1)


@torch.no_grad()
def test_random_noise_decodes_pads_and_casts_as_any_mechanism():
    net = model("foreign_noise", attention_options={"form": "random"})
    lengths = [19, 11, 5]
    ids, mask = left_padded(token_ids(), lengths)
    greedy = {"do_sample": False, "max_new_tokens": 5, "pad_token_id": 0}
    together = net.generate(ids, attention_mask=mask, **greedy)
    for row, n in enumerate(lengths):
        alone = net.generate(ids[row : row + 1, -n:], use_cache=False, **greedy)
        assert torch.equal(together[row, -5:], alone[0, -5:])
    exact = net(ids, attention_mask=mask).logits
    with torch.autocast("cpu", torch.bfloat16):
        assert (net(ids, attention_mask=mask).logits - exact).abs().mean() < 0.1
    net.bfloat16()
    assert net.model.attention_layers[0].noise_q_proj.weight.dtype == torch.float32
    assert (net(ids, attention_mask=mask).logits.float() - exact).abs().mean() < 0.1
