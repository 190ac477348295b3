"""`rectified` and `simplex`: V1's map without negative weights, and put back on the simplex."""

import pytest
import torch

from antiphase.attention import DiffV1, Rectified, Simplex
from antiphase.ops import rotary_table, rotate
from tests.attention.cases import tokens

each = pytest.mark.parametrize("kind", [Rectified, Simplex])


def layer_of(kind, **options):
    """Return a layer in fp64 with pronounced maps, on a baseline of 8 heads, 4 for keys."""
    torch.manual_seed(0)
    layer = kind(64, 8, 4, rope_theta=1e4, **options).double()
    with torch.no_grad():
        for projection in (layer.q_proj, layer.k_proj):
            projection.weight.mul_(4)
    return layer


def direct(layer, x):
    """Compute the layer from its weights; return output and A1 - lam A2."""
    B, T, d, h, h_kv = *x.shape[:2], 8, 4, 2
    table = rotary_table(T, d, 1e4)
    q = rotate((x @ layer.q_proj.weight.T).view(B, T, 2 * h, d), *table)
    k = rotate((x @ layer.k_proj.weight.T).view(B, T, 2 * h_kv, d), *table)
    v = (x @ layer.v_proj.weight.T).view(B, T, h_kv, 2 * d)
    visible = torch.ones(T, T).tril().bool()
    p = layer.lam
    lam = torch.exp(p.q1 @ p.k1) - torch.exp(p.q2 @ p.k2) + p.init
    heads, differences = [], []
    for i in range(h):
        group = i // (h // h_kv)
        A1, A2 = (
            (q[:, :, 2 * i + b] @ k[:, :, 2 * group + b].mT / d**0.5)
            .masked_fill(~visible, -torch.inf)
            .softmax(-1)
            for b in (0, 1)
        )
        A = A1 - lam * A2
        differences.append(A)
        A = A * (A > 0)
        if layer.name == "simplex":
            A = A / A.sum(-1, keepdim=True)
        heads.append(A @ v[:, :, group])
    return torch.cat(heads, dim=-1) @ layer.o_proj.weight.T, torch.stack(differences, 1)


@each
def test_output_and_gradients_are_those_of_the_formula(kind):
    layer, x = layer_of(kind, layer=3), tokens(dtype=torch.float64).requires_grad_()
    want, difference = direct(layer, x)
    assert 0.1 < (difference < 0).double().mean() < 0.5
    got, maps = layer(x, causal=True, return_maps=True)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(maps["signal"] - maps["lam"] * maps["noise"], difference)
    leaves = [x, *layer.parameters()]
    weights = torch.randn(got.shape, dtype=torch.float64)
    found, expected = (torch.autograd.grad((o * weights).sum(), leaves) for o in (got, want))
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, atol=1e-8, rtol=1e-6)


@each
@pytest.mark.parametrize("lam", [0.8, 1.5])
def test_no_weight_is_negative_and_rows_of_simplex_sum_to_one_or_zero(kind, lam):
    layer = layer_of(kind, lam=lam)
    out, maps = layer(tokens(dtype=torch.float64), causal=True, return_maps=True)
    P, positive = maps["difference"], maps["signal"] - maps["lam"] * maps["noise"] > 0
    assert torch.equal(P > 0, positive)
    assert (P >= 0).all()
    empty = ~positive.any(-1)
    assert (P[empty] == 0).all()
    assert empty[:, :, 0].all() == (lam > 1)  # the first row has one key: its weight is 1 - lam
    assert out.isfinite().all()
    assert (out[:, 0] == 0).all() == (lam > 1)
    if kind is Simplex:
        torch.testing.assert_close(P.sum(-1), (~empty).double())
    else:
        assert (P.sum(-1) > 1 - lam - 1e-12).all()  # rows of A1 - lam A2 sum to 1 - lam


@each
def test_the_parameters_are_those_of_v1_without_a_norm(kind):
    layer, v1 = layer_of(kind, lam=0.0), layer_of(DiffV1, lam=0.0, head_norm="none")
    v1.load_state_dict(layer.state_dict())  # strict
    x = tokens(dtype=torch.float64)
    torch.testing.assert_close(layer(x, causal=True), v1(x, causal=True))  # nothing to rectify
    assert {*dict(kind(64, 8).named_parameters())} == {
        *dict(DiffV1(64, 8, head_norm="none").named_parameters())
    }


@each
def test_there_is_no_head_norm(kind):
    with pytest.raises(ValueError, match="no option 'head_norm'; its options are lam, lam_init"):
        kind(64, 8, head_norm="rms")
    with pytest.raises(ValueError, match=r"lam_init=0\.5 has no effect when lam is fixed"):
        kind(64, 8, lam=0.8, lam_init=0.5)
