"""Grouped latent attention against its formula, and what its decoding caches and computes."""

import pytest
import torch
from torch import nn

from antiphase.attention import GroupedLatent
from antiphase.models import AntiphaseForCausalLM, preset
from antiphase.ops import rotary_table, rotate
from tests.attention.cases import tokens
from tests.models.tiny import config, model, token_ids


def rms(x, gain, eps=1e-5):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain


def direct(layer, x):
    """Compute the layer from its weights, one head after the other."""
    B, T, d, groups, ratio, nope, rope = *x.shape[:2], 8, 2, 3, 8, 4
    cq = rms(x @ layer.q_down_proj.weight.T, layer.q_norm.gain)
    c = rms(x @ layer.kv_down_proj.weight.T, layer.kv_norm.gain)
    table = rotary_table(T, rope, 1e4)
    k_pe = rotate((x @ layer.k_rope_proj.weight.T)[:, :, None], *table)[:, :, 0]
    q = (cq @ layer.q_proj.weight.T).view(B, T, 8, nope + rope)
    k = (c @ layer.k_proj.weight.T).view(B, T, groups, nope)
    v = (c @ layer.v_proj.weight.T).view(B, T, groups, d)
    lam = torch.sigmoid(x @ layer.lambda_proj.weight.T)
    gate = torch.sigmoid(cq @ layer.gate_proj.weight.T).view(B, T, 6, d)
    visible = torch.ones(T, T).tril().bool()
    outs = []
    for g in range(groups):
        maps = []
        for i in range(ratio + 1):
            one = q[:, :, 4 * g + i]
            rotated = rotate(one[:, :, None, nope:], *table)[:, :, 0]
            scores = one[..., :nope] @ k[:, :, g].mT + rotated @ k_pe.mT
            scores = (scores / (nope + rope) ** 0.5).masked_fill(~visible, -torch.inf)
            maps.append(scores.softmax(-1))
        for i in range(ratio):
            s = ratio * g + i
            A = maps[i] - lam[:, :, s, None] * maps[-1]  # the last of a group is its noise
            outs.append(gate[:, :, s] * (A @ v[:, :, g]))
    return torch.cat(outs, dim=-1) @ layer.o_proj.weight.T


def test_output_and_gradients_are_those_of_the_formula():
    torch.manual_seed(0)
    layer = GroupedLatent(64, 8, rope_theta=1e4).double()
    x = tokens(dtype=torch.float64).requires_grad_()
    got, want = layer(x, causal=True), direct(layer, x)
    torch.testing.assert_close(got, want)
    leaves, upstream = [x, *layer.parameters()], torch.randn_like(want)
    expected = torch.autograd.grad(want, leaves, upstream)
    torch.testing.assert_close(torch.autograd.grad(got, leaves, upstream), expected)


@torch.no_grad()
def test_only_latents_are_cached_and_decoding_never_expands_them():
    net, ids = model("grouped_latent"), token_ids()
    want = net(ids, use_cache=False).logits
    cache = net(ids[:, :12]).past_key_values
    called = []
    for layer in net.model.attention_layers:
        for projection in (layer.k_proj, layer.v_proj):
            projection.register_forward_hook(lambda *_: called.append(1))
    for t in range(12, 19):
        got = net(ids[:, t : t + 1], past_key_values=cache).logits[:, 0]
        torch.testing.assert_close(got, want[:, t], atol=2e-5, rtol=1e-4)
    assert not called
    for kept in cache.layers:
        assert kept.keys.shape == (3, 1, 19, 8)  # c, an eighth of 64
        assert kept.values.shape == (3, 1, 19, 4)  # the key that RoPE rotates


@torch.no_grad()
def test_absorbed_heads_are_those_of_the_latent():
    net = model("grouped_latent")
    layer, seen = net.model.attention_layers[0], []
    cache = net(token_ids()[:, :12]).past_key_values
    attend = layer.attend
    layer.attend = lambda heads, *args: seen.append(heads) or attend(heads, *args)
    net(token_ids()[:, 12:13], past_key_values=cache)
    assert seen[0].k.shape == (3, 1, 13, 8 + 4)
    assert seen[0].v.shape == (3, 1, 13, 8)
    assert (seen[0].q.shape[1], seen[0].q2.shape[1]) == (6, 2)


class Adapted(nn.Module):
    """A linear layer plus an update, as adapters replace one."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.in_features = layer, layer.in_features
        self.update = nn.Parameter(torch.randn_like(layer.weight))

    def forward(self, x):
        return self.layer(x) + x @ self.update.T


@torch.no_grad()
def test_an_adapter_on_keys_and_values_counts_in_absorbed_decoding():
    net, ids = model("grouped_latent"), token_ids()
    before = net(ids, use_cache=False).logits
    for layer in net.model.attention_layers:
        layer.k_proj, layer.v_proj = Adapted(layer.k_proj), Adapted(layer.v_proj)
    want = net(ids, use_cache=False).logits
    assert not torch.allclose(want, before, atol=1e-2)
    cache = net(ids[:, :12]).past_key_values
    got = net(ids[:, 12:], past_key_values=cache).logits
    torch.testing.assert_close(got, want[:, 12:], atol=1e-4, rtol=1e-3)


def test_three_of_four_layers_have_the_window():
    cfg = preset("mini", "grouped_latent", sliding_window=128, num_hidden_layers=8)
    assert [cfg.attention_layer(i).window for i in range(8)] == 2 * [128, 128, 128, None]
    types = ["full_attention", "sliding_attention"]
    assert config("grouped_latent", sliding_window=4, layer_types=types).layer_types == types


@torch.no_grad()
def test_layers_with_a_window_cache_only_the_last_latents():
    torch.manual_seed(0)
    fields = {"num_hidden_layers": 4, "sliding_window": 4, "vocab_size": 64}
    net = AntiphaseForCausalLM(preset("nano", "grouped_latent", **fields)).eval()
    ids = token_ids(2, 20)
    cache = net(ids[:, :15]).past_key_values
    got = [net(ids[:, t : t + 1], past_key_values=cache).logits for t in range(15, 20)]
    want = net(ids, use_cache=False).logits[:, 15:]
    torch.testing.assert_close(torch.cat(got, 1), want, atol=2e-5, rtol=1e-4)
    assert [layer.keys.shape[2] for layer in cache.layers] == [3, 3, 3, 20]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": 2}, "num_heads: grouped_latent at ratio 2 .* 8 cannot be split so"),
        ({"kv_rank": 0}, "kv_rank: got 0, expected at least 1"),
        ({"q_rank": 2.5}, "q_rank: got 2.5, expected a whole number or nothing"),
    ],
)
def test_invalid_options_say_what_to_change(options, message):
    with pytest.raises(ValueError, match=message):
        GroupedLatent(64, 8, **options)
