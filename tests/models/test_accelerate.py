"""The fused op in models of other libraries: same weights, same outputs, and undone."""

import pytest
import torch
from torch import nn

import antiphase
from antiphase.attention import DiffV1
from tests.models.test_weights import diffllama
from tests.models.tiny import left_padded, token_ids
from tests.peers import import_timm

close = {"atol": 1e-5, "rtol": 1e-5}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("kv_heads", [8, 4])
def test_diffllama_gives_the_same_logits_gradients_and_tokens(kv_heads, implementation):
    net = diffllama(kv_heads, attn_implementation=implementation)
    ids, mask = left_padded(token_ids(), [19, 11, 5])

    def outcome():
        net.zero_grad()
        out = net(ids, attention_mask=mask)
        out.logits[mask.bool()].square().mean().backward()
        gradients = [p.grad.clone() for p in net.parameters()]
        dynamic = net.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False)
        static = net.generate(
            ids, attention_mask=mask, max_new_tokens=8, do_sample=False,
            cache_implementation="static",
        )  # fmt: skip
        return out.logits[mask.bool()].detach(), gradients, dynamic, static

    before = outcome()
    own = type(net.model.layers[0].self_attn).forward
    done = antiphase.accelerate(net)
    assert len(done.layers) == 3
    assert net.model.layers[0].self_attn.forward.__func__ is not own
    torch.testing.assert_close(outcome(), before, atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="accelerated already"):
        antiphase.accelerate(net)
    with pytest.raises(ValueError, match=r"has no maps; undo\(\) it first"):
        net(ids, output_attentions=True)
    net.config._output_attentions = True
    with pytest.raises(ValueError, match=r"has no maps; undo\(\) it first"):
        net(ids)
    net.config._output_attentions = False
    done.undo()
    again = antiphase.accelerate(net)
    done.undo()  # an old handle leaves a new one alone
    assert net.model.layers[0].self_attn.forward.__func__ is not own
    again.undo()
    assert net.model.layers[0].self_attn.forward.__func__ is own
    assert net.config._attn_implementation == implementation
    assert torch.equal(outcome()[0], before[0])


def test_an_unknown_model_is_rejected_with_the_known_layers():
    with pytest.raises(ValueError, match=r"Linear: has no layer .* DiffLlamaAttention of transf"):
        antiphase.accelerate(nn.Linear(2, 2))


@pytest.fixture(scope="module")
def timm():
    return import_timm()


def randomised(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for name, p in module.named_parameters():
        if "sub_norm" in name or "lambda" in name:
            nn.init.uniform_(p, 0.1, 0.5)
    return module


@pytest.mark.parametrize("causal", [False, True])
def test_timms_layer_converts_to_ours(timm, causal):
    theirs = randomised(timm.layers.DiffAttention(64, num_heads=4, depth=3, proj_bias=False))
    ours = DiffV1(64, 8, layer=3)
    q, k, v = theirs.qkv.weight.chunk(3)
    lam = {f"lam.{n}": getattr(theirs, f"lambda_{n}") for n in ("q1", "k1", "q2", "k2")}
    ours.load_state_dict(
        {
            "q_proj.weight": q,
            "k_proj.weight": k,
            "v_proj.weight": v,
            "o_proj.weight": theirs.proj.weight,
            "norm.gain": theirs.sub_norm.weight,
            **lam,
        }
    )
    x = torch.randn(2, 17, 64)
    torch.testing.assert_close(ours(x, causal=causal), theirs(x, is_causal=causal), **close)


@pytest.mark.parametrize(
    "options", [{}, {"qk_norm": True, "scale_norm": True, "dual_lambda": True}]
)
def test_timms_layer_is_accelerated_in_place(timm, options):
    layer = randomised(timm.layers.DiffAttention(64, num_heads=4, depth=3, **options))
    x = torch.randn(2, 17, 64, requires_grad=True)
    mask = torch.rand(2, 1, 17, 17) > 0.3

    def outcome():
        outs = [layer(x), layer(x, is_causal=True), layer(x, attn_mask=mask)]
        loss = sum(out.square().sum() for out in outs)
        return outs, torch.autograd.grad(loss, (x, *layer.parameters()))

    before = outcome()
    done = antiphase.accelerate(layer)
    torch.testing.assert_close(outcome(), before, atol=1e-4, rtol=1e-4)
    done.undo()
    torch.testing.assert_close(outcome(), before, atol=0, rtol=0)


def test_timms_vision_transformer_is_accelerated(timm):
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    net = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, attn_layer="diff"
    ).eval()
    image = torch.randn(2, 3, 32, 32)
    want = net(image)
    done = antiphase.accelerate(net)
    assert len(done.layers) == 2
    torch.testing.assert_close(net(image), want, **close)


def test_dropout_of_a_map_that_is_not_materialised_is_rejected(timm):
    layer = timm.layers.DiffAttention(64, num_heads=4, attn_drop=0.1)
    antiphase.accelerate(layer)
    assert layer.eval()(torch.randn(1, 5, 64)).shape == (1, 5, 64)
    with pytest.raises(ValueError, match="set it to 0 or undo"):
        layer.train()(torch.randn(1, 5, 64))
