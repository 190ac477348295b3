"""A mechanism where timm expects an attention layer."""

import pytest
import torch
from torch import nn

from antiphase.attention import MECHANISMS
from antiphase.attention.for_timm import TimmLayer, timm_layer
from tests.attention.cases import NAMES
from tests.peers import import_timm


@pytest.mark.parametrize("name", NAMES)
def test_every_mechanism_takes_timms_arguments(name):
    if MECHANISMS[name].causal_only:
        with pytest.raises(ValueError, match=f"attention: {name} reads tokens in their order"):
            timm_layer(name)
        return
    layer = timm_layer(name)(
        64, num_heads=8, qkv_bias=True, proj_bias=False, norm_layer=nn.LayerNorm
    )
    x = torch.randn(3, 10, 64)
    assert layer(x).shape == x.shape
    assert layer.layer.o_proj.bias is None
    assert layer.layer.q_proj.bias is not None
    torch.testing.assert_close(layer(x), layer.layer(x))


def test_biases_masks_and_dropout_are_where_timm_has_them():
    torch.manual_seed(0)
    layer = TimmLayer(64, num_heads=8, attn_drop=0.5, proj_drop=0.25)
    assert layer.layer.o_proj.bias is not None
    assert all(p.bias is None for p in (layer.layer.q_proj, layer.layer.k_proj, layer.layer.v_proj))
    x = torch.randn(2, 10, 64)
    assert not torch.equal(layer(x), layer(x))
    dropped = layer(torch.randn(8, 100, 64)) == 0
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.03)
    layer.eval()
    mask = torch.ones(10, 10, dtype=torch.bool).tril()
    torch.testing.assert_close(layer(x, attn_mask=mask), layer(x, is_causal=True))
    assert not torch.allclose(layer(x), layer(x, is_causal=True))


def test_what_the_mechanisms_lack_raises():
    for field in ("qk_norm", "scale_norm", "gated"):
        with pytest.raises(ValueError, match=f"{field}: got True"):
            TimmLayer(64, **{field: True})
    with pytest.raises(ValueError, match="dim_out: got 32, expected the width of the tokens, 64"):
        TimmLayer(64, dim_out=32)
    with pytest.raises(ValueError, match="allowed are standard"):
        timm_layer("nonsense")


def test_a_vision_transformer_of_timm_trains_with_it():
    timm, kind = import_timm(), timm_layer("diff_v2")
    net = timm.models.vision_transformer.VisionTransformer(
        img_size=16,
        patch_size=8,
        embed_dim=32,
        depth=2,
        num_heads=4,
        num_classes=3,
        attn_layer=kind,
    )
    assert isinstance(net.blocks[1].attn, kind)
    out = net(torch.randn(2, 3, 16, 16))
    assert out.shape == (2, 3)
    out.square().sum().backward()
    assert all(p.grad is not None for p in net.blocks.parameters())
