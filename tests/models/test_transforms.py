"""`torch.func` through complete layers: RMS norm and RoPE beside the attention of `reference`."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, jvp, vmap

from antiphase.models import AntiphaseForCausalLM
from antiphase.ops import rms_norm, rotary_table, rotate
from tests.models.tiny import config, token_ids

NAMES = ["standard", "diff_v1", "diff_v2", "low_rank_noise", "fixed_noise"]
each = pytest.mark.parametrize("name", NAMES)


def net_of(name: str):
    torch.manual_seed(0)
    net = AntiphaseForCausalLM(config(name, use_cache=False)).double().eval()
    net.set_attn_implementation("reference")
    return net, {n: p.detach() for n, p in net.named_parameters()}


def loss_of(net, ids):
    """Return the loss by the weights, in fp64; transformers' own is computed in fp32."""

    def loss(weights):
        logits = functional_call(net, weights, (ids,)).logits[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    return loss


@each
def test_jvp_is_the_directional_derivative(name):
    net, weights = net_of(name)
    loss = loss_of(net, token_ids(2, 9))
    direction = {n: torch.randn_like(w) for n, w in weights.items()}
    _, got = jvp(loss, (weights,), (direction,))
    want = sum((g * direction[n]).sum() for n, g in grad(loss)(weights).items())
    torch.testing.assert_close(got, want)
    step = 1e-6
    moved = [{n: w + s * direction[n] for n, w in weights.items()} for s in (step, -step)]
    difference = (loss(moved[0]) - loss(moved[1])) / (2 * step)
    torch.testing.assert_close(got, difference, atol=1e-5, rtol=1e-5)


@each
def test_vmap_gives_gradients_per_sequence(name):
    net, weights = net_of(name)
    ids = token_ids(3, 9)

    def one(weights, row):
        return loss_of(net, row[None])(weights)

    together = vmap(grad(one), in_dims=(None, 0))(weights, ids)
    for i, row in enumerate(ids):
        net.zero_grad()
        logits = net(row[None]).logits[0, :-1]
        F.cross_entropy(logits, row[1:]).backward()
        for n, p in net.named_parameters():
            torch.testing.assert_close(together[n][i], p.grad, msg=n)


def test_vmap_over_models():
    net, weights = net_of("diff_v2")
    ids = token_ids(2, 9)
    stacked = {n: torch.stack([w, w.cos()]) for n, w in weights.items()}
    got = vmap(lambda w: functional_call(net, w, (ids,)).logits)(stacked)
    for i in range(2):
        want = functional_call(net, {n: w[i] for n, w in stacked.items()}, (ids,)).logits
        torch.testing.assert_close(got[i], want)


def test_norm_and_rope_alone():
    torch.manual_seed(0)
    x, gain = torch.randn(3, 5, 2, 8, dtype=torch.float64), torch.rand(8, dtype=torch.float64)
    cos, sin = (t.double() for t in rotary_table(5, 8))
    for f in (lambda x: rms_norm(x, gain, 1e-5), lambda x: rotate(x, cos, sin)):
        mapped = vmap(lambda row, f=f: f(row[None])[0])(x)
        torch.testing.assert_close(mapped, f(x))
        tangent = torch.randn_like(x)
        _, forward = jvp(f, (x,), (tangent,))
        leaf = x.clone().requires_grad_()
        out = f(leaf)
        weight = torch.randn_like(out)
        (backward,) = torch.autograd.grad(out, leaf, weight)
        torch.testing.assert_close((forward * weight).sum(), (backward * tangent).sum())
    torch.testing.assert_close(
        vmap(lambda g: rms_norm(x, g, 1e-5))(torch.stack([gain, gain + 1]))[1],
        rms_norm(x, gain + 1, 1e-5),
    )
