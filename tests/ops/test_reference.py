"""The reference: against a loop over heads that shares no code with it, and its derivatives."""

import math

import pytest
import torch

from antiphase import attention_maps, diff_attention
from antiphase.ops import attention, attention_map
from tests.ops.cases import GENERAL, NATIVE, Case


def loop_over_heads(q1, k1, q2, k2, v, lam, causal):
    """Compute every output row on its own: one head, one query, plain sums."""
    B, H, Tq, d = q1.shape
    Hkv, Tk = k1.shape[1:3]
    Hn, Hkv_n, d2 = q2.shape[1], k2.shape[1], q2.shape[3]
    out = torch.zeros(B, H, Tq, v.shape[-1], dtype=v.dtype)
    for b in range(B):
        for h in range(H):
            key_head = h // (H // Hkv)
            noise_head = h // (H // Hn)
            noise_key_head = noise_head // (Hn // Hkv_n)
            for i in range(Tq):
                keys = min(Tk, max(0, i + 1 + Tk - Tq)) if causal else Tk
                if not keys:
                    continue
                s1 = k1[b, key_head, :keys] @ q1[b, h, i] / math.sqrt(d)
                s2 = k2[b, noise_key_head, :keys] @ q2[b, noise_head, i] / math.sqrt(d2)
                e1, e2 = torch.exp(s1 - s1.max()), torch.exp(s2 - s2.max())
                weights = e1 / e1.sum() - lam[b, h, i] * e2 / e2.sum()
                out[b, h, i] = weights @ v[b, key_head, :keys]
    return out


@pytest.mark.parametrize("case", [c for c in NATIVE + GENERAL if c.Tq < 100], ids=str)
def test_matches_a_loop_over_heads(case: Case):
    inputs = case.inputs()
    expected = loop_over_heads(*inputs, case.causal)
    out = diff_attention(*inputs, causal=case.causal, backend="reference")
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


def test_gqa_pairs_each_map_with_its_own_key_head():
    """V1 with GQA: key head of map b of head i is (i // n_rep, b); the naive repeat is not that."""
    h, h_kv, T, d = 4, 2, 6, 8
    q = torch.randn(1, 2 * h, T, d, dtype=torch.float64)
    k = torch.randn(1, 2 * h_kv, T, d, dtype=torch.float64)
    v = torch.randn(1, h_kv, T, 2 * d, dtype=torch.float64)
    right = diff_attention(q[:, 0::2], k[:, 0::2], q[:, 1::2], k[:, 1::2], v, 0.5)
    repeated = k.repeat_interleave(h // h_kv, dim=1)  # the known bug: both maps get one key
    wrong = diff_attention(
        q[:, 0::2],
        repeated[:, 0::2],
        q[:, 1::2],
        repeated[:, 1::2],
        v.repeat_interleave(h // h_kv, dim=1),
        0.5,
    )
    assert not torch.allclose(right, wrong, atol=1e-3)
    for i in range(h):
        one = diff_attention(
            q[:, 2 * i : 2 * i + 1],
            k[:, 2 * (i // 2) : 2 * (i // 2) + 1],
            q[:, 2 * i + 1 : 2 * i + 2],
            k[:, 2 * (i // 2) + 1 : 2 * (i // 2) + 2],
            v[:, i // 2 : i // 2 + 1],
            0.5,
        )
        torch.testing.assert_close(right[:, i : i + 1], one, rtol=1e-12, atol=1e-12)


def test_maps_are_softmax_rows_and_give_the_output():
    q1, k1, q2, k2, v, lam = Case(H=4, Hkv=2, Tq=9, Tk=12).inputs()
    maps = attention_maps(q1, k1, q2, k2, v, lam, causal=True)
    ones = torch.ones(1, 4, 9, dtype=torch.float64)
    torch.testing.assert_close(maps.A1.sum(-1), ones)
    torch.testing.assert_close(maps.A2.sum(-1), ones)
    torch.testing.assert_close(maps.A, maps.A1 - lam * maps.A2)
    assert maps.A1[0, 0, 0, 4:].eq(0).all()  # the first of 9 queries attends to 12 - 9 + 1 keys
    assert maps.A1[0, 0, 0, :4].gt(0).all()
    out = maps.A @ v.repeat_interleave(2, dim=1)
    torch.testing.assert_close(diff_attention(q1, k1, q2, k2, v, lam, causal=True), out)


def test_second_derivatives():
    case = Case(H=1, Hkv=1, Tq=3, d=2, dv=2)
    inputs = [t.requires_grad_() for t in case.inputs()]

    def f(*tensors):
        return diff_attention(*tensors, causal=True, backend="reference")

    assert torch.autograd.gradgradcheck(f, inputs)


def test_sink_takes_part_of_the_weight():
    q, k, v = (torch.zeros(1, 1, 2, 4, dtype=torch.float64) for _ in range(3))
    v += 1.0
    out = attention(q, k, v, sink=torch.zeros(1, dtype=torch.float64), backend="reference")
    torch.testing.assert_close(
        out, torch.full_like(out, 2 / 3)
    )  # two keys and the sink, equal weights


@pytest.mark.parametrize("backend", ["reference", "sdpa", "fused_cpu"])
@pytest.mark.parametrize("masked", [False, True])
def test_autocast_changes_no_op(backend: str, masked: bool):
    inputs = Case(H=4, Hkv=2, Tq=20).inputs(torch.float32)
    call = {"mask": torch.randn(20, 20) if masked else None, "causal": True}
    want = diff_attention(*inputs, backend=backend, **call)
    with torch.autocast("cpu", torch.bfloat16):
        got = diff_attention(*inputs, backend=backend, **call)
    assert torch.equal(got, want)


def test_autocast_changes_no_map():
    q1, k1, q2, k2, v, lam = Case(H=4, Hkv=2, Tq=20).inputs(torch.float32)
    want = [attention_map(q1, k1, v), *attention_maps(q1, k1, q2, k2, v, lam, causal=True)]
    with torch.autocast("cpu", torch.bfloat16):
        got = [attention_map(q1, k1, v), *attention_maps(q1, k1, q2, k2, v, lam, causal=True)]
        assert torch.is_autocast_enabled("cpu")
    for A, expected in zip(got, want, strict=True):
        assert A.dtype == torch.float32
        assert torch.equal(A, expected)


def test_autocast_in_one_compiled_graph():
    torch._dynamo.reset()
    inputs = Case(Tq=12).inputs(torch.float32)

    def f(*tensors):
        with torch.autocast("cpu", torch.bfloat16):
            return diff_attention(*tensors, causal=True, backend="reference")

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), f(*inputs))
