"""Where options make one mechanism equal to another, and what kind of noise each has."""

import math

import pytest
import torch

from antiphase.attention import (
    DiffV1,
    DiffV2,
    FixedNoise,
    Gated,
    LowDimNoise,
    LowRankNoise,
    Sink,
    Standard,
    TopK,
)
from antiphase.attention.parts import depth_init
from antiphase.ops import attention, rotary_table, rotate
from tests.attention.cases import small, tokens


def test_v1_with_lam_zero_and_no_norm_is_standard_on_the_signal_heads():
    layer, x = small("diff_v1", 4, lam=0.0, head_norm="none", rope_theta=1e4), tokens()
    d, table = layer.head_dim, rotary_table(21, layer.head_dim)
    q = rotate(layer.q_proj(x).unflatten(-1, (-1, d)), *table)[:, :, 0::2]
    k = rotate(layer.k_proj(x).unflatten(-1, (-1, d)), *table)[:, :, 0::2]
    v = layer.v_proj(x).unflatten(-1, (-1, 2 * d))
    o = attention(*(t.transpose(1, 2) for t in (q, k, v)), causal=True)
    want = layer.o_proj(o.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, causal=True), want, atol=1e-5, rtol=1e-5)


def test_v2_with_a_very_negative_lambda_is_standard_on_the_signal_heads():
    layer, x = small("diff_v2", 4, rope_theta=1e4), tokens()
    plain = Standard(64, 8, 4, rope_theta=1e4)
    with torch.no_grad():
        plain.q_proj.weight.copy_(layer.q_proj.weight.unflatten(0, (8, 2, 8))[:, 0].flatten(0, 1))
        for name in ("k_proj", "v_proj", "o_proj"):
            getattr(plain, name).weight.copy_(getattr(layer, name).weight)
    layer.lambda_proj.register_forward_hook(lambda module, args, out: torch.full_like(out, -200.0))
    torch.testing.assert_close(layer(x, causal=True), plain(x, causal=True), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kv_heads", [8, 4])
def test_grouped_at_one_to_one_is_v1(kv_heads):
    v1, grouped = small("diff_v1", kv_heads, layer=3), small("grouped", kv_heads, layer=3, ratio=1)
    grouped.load_state_dict(v1.state_dict())
    torch.testing.assert_close(grouped(tokens(), causal=True), v1(tokens(), causal=True))


def test_grouped_shares_one_noise_map_per_group():
    _, maps = small("grouped", ratio=3)(tokens(), causal=True, return_maps=True)
    noise = maps["noise"].unflatten(1, (2, 3))
    assert torch.equal(noise[:, :, :1].expand_as(noise), noise)
    assert not torch.equal(noise[:, 0, 0], noise[:, 1, 0])


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_low_rank_noise_has_its_rank_in_blocks_below_the_diagonal(rank):
    layer = LowRankNoise(64, 8, rank=rank).double()
    _, maps = layer(tokens(T=40, dtype=torch.float64), causal=True, return_maps=True)
    A2 = maps["noise"]
    for m in (8, 20, 33):
        ranks = torch.linalg.matrix_rank(A2[..., m:, :m], rtol=1e-9)
        assert (ranks <= rank).all()
        assert (ranks == min(rank, m, 40 - m)).any()
    assert (torch.linalg.matrix_rank(A2) == 40).all()  # the causal triangle itself


@pytest.mark.parametrize("gate", ["learned", "mean"])
def test_fixed_noise_does_not_depend_on_the_query(gate):
    layer = FixedNoise(64, 8, gate=gate).double()
    _, maps = layer(tokens(T=30, dtype=torch.float64), causal=True, return_maps=True)
    A2 = maps["noise"]
    assert (torch.linalg.matrix_rank(A2[..., 12:, :12], rtol=1e-9) == 1).all()
    if gate == "mean":
        rows = torch.arange(1, 31, dtype=torch.float64)[:, None]
        torch.testing.assert_close(A2[0, 0], torch.ones(30, 30).double().tril() / rows)
        assert "gate_proj" not in dict(layer.named_modules())


def test_low_dim_noise_of_the_heads_width_is_v1():
    narrow, v1 = LowDimNoise(64, 8, rank=8, rope_theta=1e4), DiffV1(64, 8, rope_theta=1e4)
    with torch.no_grad():
        for side in "qk":
            pairs = getattr(v1, f"{side}_proj").weight.unflatten(0, (4, 2, 8))
            getattr(narrow, f"{side}_proj").weight.copy_(pairs[:, 0].flatten(0, 1))
            getattr(narrow, f"noise_{side}_proj").weight.copy_(pairs[:, 1].flatten(0, 1))
        for name in ("v_proj", "o_proj"):
            getattr(narrow, name).weight.copy_(getattr(v1, name).weight)
        narrow.lam.load_state_dict(v1.lam.state_dict())
    x = tokens()
    torch.testing.assert_close(narrow(x, causal=True), v1(x, causal=True), atol=1e-5, rtol=1e-5)


def test_top_k_attends_to_k_keys_and_with_all_of_them_is_standard():
    layer, plain = TopK(64, 8, k=3), Standard(64, 8)
    plain.load_state_dict(layer.state_dict())
    _, maps = layer(tokens(), causal=True, return_maps=True)
    attended = (maps["signal"] > 0).sum(-1)
    assert torch.equal(attended, torch.arange(1, 22).clamp_max(3).expand_as(attended))
    every = TopK(64, 8, k=1000)
    every.load_state_dict(layer.state_dict())
    torch.testing.assert_close(every(tokens(), causal=True), plain(tokens(), causal=True))


def test_sink_with_a_very_negative_logit_and_equal_gates_are_standard():
    x, plain = tokens(), Standard(64, 8)
    sink, gated = Sink(64, 8), Gated(64, 8, elementwise=True)
    for layer in (sink, gated):
        layer.load_state_dict(plain.state_dict(), strict=False)
    with torch.no_grad():
        sink.sink.logits.fill_(-200.0)
        gated.gate_proj.weight.zero_()  # every gate one half
    want = plain(x, causal=True)
    torch.testing.assert_close(sink(x, causal=True), want, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(2 * gated(x, causal=True), want, atol=1e-6, rtol=1e-5)


def test_half_dim_splits_the_same_weights_into_twice_the_heads():
    finer = Standard(64, 8, 4, half_dim=True)
    assert finer.head_counts == {"heads": 16, "kv_heads": 8}
    assert finer.head_dim == 4
    assert sum(p.numel() for p in finer.parameters()) == sum(
        p.numel() for p in Standard(64, 8, 4).parameters()
    )
    _, maps = finer(tokens(), causal=True, return_maps=True)
    assert maps["signal"].shape[1] == 16


def test_lambda_starts_by_depth_and_its_factor_belongs_to_the_norm():
    assert [round(depth_init(i), 3) for i in range(4)] == [0.2, 0.356, 0.471, 0.556]
    layer = small("diff_v1", layer=2)
    lam = layer.lam(tokens())
    q1, k1, q2, k2 = (getattr(layer.lam, name) for name in ("q1", "k1", "q2", "k2"))
    want = math.exp((q1 @ k1).item()) - math.exp((q2 @ k2).item()) + depth_init(2)
    assert lam.item() == pytest.approx(want, abs=1e-6)
    assert layer.norm.factor == pytest.approx(1 - depth_init(2))
    assert 0.05 < torch.cat([q1, k1, q2, k2]).std() < 0.2
    fixed = DiffV1(64, 8, layer=2, lam=0.5)
    assert fixed.lam(tokens()).item() == 0.5
    assert not list(fixed.lam.parameters())
    assert fixed.norm.factor == pytest.approx(1 - depth_init(2))
    constant = DiffV1(64, 8, layer=2, lam_init=0.8)
    assert constant.lam.init == 0.8
    assert constant.norm.factor == pytest.approx(0.2)


@pytest.mark.parametrize(("norm", "gains"), [("rms", 16), ("scalar", 1), ("none", 0)])
def test_the_head_norm_has_three_forms(norm, gains):
    layer = small("diff_v1", head_norm=norm, layer=1)
    assert sum(p.numel() for p in layer.norm.parameters()) == gains
    o = torch.randn(2, 4, 5, 16)
    want = o
    if norm == "rms":
        want = o * (o.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * (1 - depth_init(1))
    torch.testing.assert_close(layer.norm(o), want)


def test_v2_projects_lambda_from_each_token():
    layer = DiffV2(64, 8)
    _, maps = layer(tokens(), causal=True, return_maps=True)
    lam = maps["lam"]
    assert lam.shape == (2, 8, 21, 1)
    assert lam.std(2).min() > 0
    assert (lam > 0).all()
    assert (lam < 1).all()
    torch.testing.assert_close(lam[0, 3, 5, 0], torch.sigmoid(layer.lambda_proj(tokens())[0, 5, 3]))
