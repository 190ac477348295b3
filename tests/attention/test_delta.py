"""`delta`: the layer written again token by token; its convolution in padded and packed batches."""

import pytest
import torch
import torch.nn.functional as F

from antiphase.attention.delta import Delta
from tests.attention.cases import small, tokens
from tests.models.tiny import model, token_ids


def written_again(layer: Delta, x: torch.Tensor) -> torch.Tensor:
    """Compute the layer for x [T, D] with PyTorch's convolution and a loop over tokens."""
    heads, d = layer.num_heads, layer.head_dim
    parts = []
    at = 0
    for W in (layer.q_proj, layer.k_proj, layer.v_proj):
        y = x @ W.weight.T
        if layer.options.convolution:
            filters = layer.convolution.weight[at : at + y.shape[1] // d].flatten(0, 1)
            past = F.pad(y.T[None], (layer.options.convolution - 1, 0))
            y = F.silu(F.conv1d(past, filters.flip(-1)[:, None], groups=len(filters)))[0].T
        at += y.shape[1] // d
        parts.append(y.unflatten(1, (-1, d)))
    q, k, v = parts  # [T, h | h_kv, d]
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
    group = heads // layer.num_kv_heads
    beta = torch.sigmoid(x @ layer.beta_proj.weight.T).repeat_interleave(group, 1)
    a = layer.forgetting(x @ layer.decay_proj.weight.T).exp().repeat_interleave(group, 1)
    S = x.new_zeros(heads, d, d)
    out = []
    for t in range(len(x)):
        S = a[t, :, None, None] * S
        u = beta[t, :, None] * (v[t] - torch.einsum("hkv,hk->hv", S, k[t]))
        S = S + torch.einsum("hk,hv->hkv", k[t], u)
        out.append(torch.einsum("hkv,hk->hv", S, q[t]) * d**-0.5)
    return layer.norm(torch.stack(out)).flatten(1) @ layer.o_proj.weight.T


@pytest.mark.parametrize("kv_heads", [8, 2], ids=["mha", "gqa"])
@pytest.mark.parametrize("convolution", [0, 2, 4])
def test_the_layer_is_its_formula(kv_heads, convolution):
    layer = small("delta", kv_heads, convolution=convolution).double()
    x = tokens(dtype=torch.float64)
    want = torch.stack([written_again(layer, row) for row in x])
    torch.testing.assert_close(layer(x, causal=True), want)


def test_a_token_sees_its_neighbours_of_the_same_document_without_padding():
    layer, x = small("delta"), tokens(1, 12)
    mask = torch.tensor([[True] * 5 + [False] * 2 + [True] * 5])
    documents = torch.tensor([[0] * 8 + [1] * 4])
    out = layer(x, causal=True, mask=mask, documents=documents)[0]
    for places in ([0, 1, 2, 3, 4, 7], [8, 9, 10, 11]):
        torch.testing.assert_close(out[places], layer(x[:, places], causal=True)[0])


@pytest.mark.parametrize("cut", [1, 2, 5])
@torch.no_grad()
def test_decoding_after_a_padded_batch_is_the_complete_sequence(cut):
    """Right padding: the state has to skip it, also within the convolution's window."""
    net, ids = model("delta"), token_ids(2, 12)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, 6:] = 0
    cache = net(ids[:, :9], attention_mask=mask, use_cache=True).past_key_values
    got = []
    for a in range(9, 12, cut):
        step = ids[:, a : min(a + cut, 12)]
        mask = torch.cat([mask, torch.ones_like(step)], dim=1)
        positions = mask.cumsum(1)[:, -step.shape[1] :] - 1
        got.append(
            net(step, attention_mask=mask, position_ids=positions, past_key_values=cache).logits
        )
    real = torch.cat([ids[:1, :6], ids[:1, 9:]], dim=1)
    torch.testing.assert_close(torch.cat(got, 1)[0], net(real).logits[0, 6:])
    torch.testing.assert_close(torch.cat(got, 1)[1], net(ids[1:]).logits[0, 9:])


@pytest.mark.parametrize("tokens_seen", [-1, 1])
def test_a_convolution_of_one_token_raises(tokens_seen):
    with pytest.raises(ValueError, match=f"convolution: got {tokens_seen}, expected 0 for none"):
        Delta(64, 8, convolution=tokens_seen)
