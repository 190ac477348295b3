"""DINT against its formula, row by row: the integral, its resets, and what decoding keeps."""

import pytest
import torch
from transformers.cache_utils import DynamicCache

from antiphase.attention import DiffV1, Dint
from antiphase.ops import rotary_table, rotate
from tests.attention.cases import tokens
from tests.models.tiny import model, token_ids


def layer_of(**options):
    torch.manual_seed(0)
    return Dint(64, 8, 4, rope_theta=1e4, **options).double()


def direct(layer, x, real=None, documents=None, causal=True):
    """Compute the layer from its weights, one row after the other; return output and maps."""
    B, T, d, h, h_kv = *x.shape[:2], 8, 4, 2
    real = torch.ones(B, T, dtype=torch.bool) if real is None else real
    documents = torch.zeros(B, T) if documents is None else documents
    table = rotary_table(T, d, 1e4)
    q = rotate((x @ layer.q_proj.weight.T).view(B, T, 2 * h, d), *table)
    k = rotate((x @ layer.k_proj.weight.T).view(B, T, 2 * h_kv, d), *table)
    v = (x @ layer.v_proj.weight.T).view(B, T, h_kv, 2 * d)
    p = layer.lam
    lam = torch.exp(p.q1 @ p.k1) - torch.exp(p.q2 @ p.k2) + p.init
    out, A = [], torch.zeros(B, h, T, T, dtype=x.dtype)
    for b in range(B):
        for i in range(h):
            group, signal = i // (h // h_kv), []
            for t in range(T):
                last = t + 1 if causal else T
                keys = [j for j in range(last) if documents[b, j] == documents[b, t] and real[b, j]]
                maps = []
                for m in (0, 1):
                    weights = torch.zeros(T, dtype=x.dtype)
                    if keys:
                        scores = k[b, keys, 2 * group + m] @ q[b, t, 2 * i + m] / d**0.5
                        weights = weights.index_add(0, torch.tensor(keys), scores.softmax(0))
                    maps.append(weights)
                signal.append(maps[0])
                A[b, i, t] = maps[0] - lam * maps[1]
            for t in range(T):
                last = t + 1 if causal else T
                rows = [m for m in range(last) if documents[b, m] == documents[b, t] and real[b, m]]
                if rows:
                    A[b, i, t] += lam * sum(signal[m] for m in rows) / len(rows)
    for i in range(h):
        o = A[:, i] @ v[:, :, i // (h // h_kv)]
        o = o / (o.square().mean(-1, keepdim=True) + layer.eps).sqrt()
        out.append(o * layer.norm.gain * (1 - p.init))
    return torch.cat(out, -1) @ layer.o_proj.weight.T, A


REAL = torch.ones(2, 15, dtype=torch.bool)
REAL[0, :3] = REAL[1, 13:] = False
PACKED = torch.tensor([[0] * 4 + [1] * 8 + [2] * 3, [0] * 15])
CASES = {
    "causal": {},
    "padded": {"real": REAL},
    "packed": {"documents": PACKED},
    "packed and padded": {"documents": PACKED, "real": REAL},
    "full": {"causal": False},
    "full, padded": {"causal": False, "real": REAL},
    "full, packed": {"causal": False, "documents": PACKED},
}


@pytest.mark.parametrize("case", CASES)
def test_output_maps_and_gradients_are_those_of_the_formula(case):
    fields = CASES[case]
    layer, x = layer_of(layer=3), tokens(T=15, dtype=torch.float64).requires_grad_()
    want, A = direct(layer, x, **fields)
    call = {"causal": fields.get("causal", True), "documents": fields.get("documents")}
    real = fields.get("real")
    rows = torch.ones(2, 15, dtype=torch.bool) if real is None else real
    got = layer(x, mask=real, **call)
    torch.testing.assert_close(got[rows], want[rows])
    _, maps = layer(x, mask=real, return_maps=True, **call)
    torch.testing.assert_close(maps["difference"].transpose(1, 2)[rows], A.transpose(1, 2)[rows])
    leaves = [x, *layer.parameters()]
    upstream = torch.randn(want[rows].shape, dtype=torch.float64)
    found = torch.autograd.grad(got[rows], leaves, upstream)
    expected = torch.autograd.grad(want[rows], leaves, upstream)
    torch.testing.assert_close(found, expected)


def test_rows_sum_to_one_and_the_integral_sees_no_future():
    _, maps = layer_of(lam=0.7)(tokens(dtype=torch.float64), causal=True, return_maps=True)
    for kind in ("integral", "difference"):
        torch.testing.assert_close(maps[kind].sum(-1), torch.ones_like(maps[kind][..., 0]))
        assert (maps[kind].triu(1) == 0).all()
    A1 = maps["signal"]
    torch.testing.assert_close(maps["integral"][:, :, 4], A1[:, :, :5].mean(2))


def test_the_parameters_are_those_of_v1():
    ours, v1 = (dict(kind(64, 8).named_parameters()) for kind in (Dint, DiffV1))
    assert {n: p.shape for n, p in ours.items()} == {n: p.shape for n, p in v1.items()}


@torch.no_grad()
def test_decoding_keeps_one_summed_vector_and_a_count_per_head():
    net, cache = model("dint"), None
    for n in (5, 1, 4):
        out = net(token_ids(2, n, seed=n), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
    state = cache.layers[0].recurrent_states[0]
    assert state.shape == (2, 4, 1, 16 + 1)  # h heads, V of width 2d
    assert (state[..., -1] == 10).all()


@torch.no_grad()
def test_a_new_document_resets_sum_and_count():
    net = model("dint")
    cache = DynamicCache(config=net.config)
    positions = torch.tensor([[*range(6), *range(3)]])
    net(token_ids(1, 9), position_ids=positions, past_key_values=cache)
    assert (cache.layers[0].recurrent_states[0][..., -1] == 3).all()
    net(token_ids(1, 1), position_ids=torch.tensor([[0]]), past_key_values=cache)
    assert (cache.layers[0].recurrent_states[0][..., -1] == 1).all()
