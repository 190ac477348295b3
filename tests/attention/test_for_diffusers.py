"""V1 on the projections of diffusers' attention layers."""

import pytest
import torch

from antiphase.attention import DiffV1
from antiphase.attention.for_diffusers import DiffusersProcessor

diffusers = pytest.importorskip("diffusers")
from diffusers.models.attention_processor import Attention  # noqa: E402


def layer(**options):
    torch.manual_seed(0)
    return Attention(query_dim=64, heads=8, dim_head=8, **options).eval()


def v1_with_the_weights_of(attn, processor) -> DiffV1:
    ours = DiffV1(64, 8, bias=False).eval()
    for mine, theirs in (("q_proj", "to_q"), ("k_proj", "to_k"), ("v_proj", "to_v")):
        setattr(ours, mine, getattr(attn, theirs))
    ours.o_proj, ours.lam, ours.norm = attn.to_out[0], processor.lam, processor.norm
    return ours


@torch.no_grad()
def test_it_is_v1_of_the_same_weights():
    attn, processor = layer(), DiffusersProcessor(8)
    attn.set_processor(processor)
    x = torch.randn(2, 11, 64)
    torch.testing.assert_close(attn(x), v1_with_the_weights_of(attn, processor)(x))
    mask = torch.zeros(2, 1, 11)
    mask[1, :, 6:] = -10000.0
    torch.testing.assert_close(attn(x, attention_mask=mask)[1:, :6], attn(x[1:, :6]))


@torch.no_grad()
def test_without_noise_and_norm_two_heads_share_a_map():
    attn, processor = layer(), DiffusersProcessor(8, lam=0.0, head_norm="none")
    attn.to_q.weight.unflatten(0, (4, 2, 8))[:, 1] = attn.to_q.weight.unflatten(0, (4, 2, 8))[:, 0]
    attn.to_k.weight.unflatten(0, (4, 2, 8))[:, 1] = attn.to_k.weight.unflatten(0, (4, 2, 8))[:, 0]
    x = torch.randn(2, 11, 64)
    want = attn(x)  # diffusers' own processor
    attn.set_processor(processor)
    torch.testing.assert_close(attn(x), want, atol=1e-5, rtol=1e-4)


def test_cross_attention_images_and_gradients():
    attn = layer(cross_attention_dim=32)
    attn.set_processor(DiffusersProcessor(8, layer=3))
    out = attn(torch.randn(2, 11, 64), encoder_hidden_states=torch.randn(2, 5, 32))
    assert out.shape == (2, 11, 64)
    image = layer(norm_num_groups=8, residual_connection=True)
    image.set_processor(DiffusersProcessor(8))
    picture = image(torch.randn(2, 64, 4, 6))
    assert picture.shape == (2, 64, 4, 6)
    (out.sum() + picture.square().sum()).backward()
    assert all(p.grad is not None for p in (*attn.parameters(), *image.parameters()))


def test_a_model_of_diffusers_takes_one_processor_per_layer():
    torch.manual_seed(0)
    net = diffusers.DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=4,
        num_layers=2,
        sample_size=8,
        norm_num_groups=8,
        num_embeds_ada_norm=10,
    )
    processors = [DiffusersProcessor(8, layer=i) for i in range(2)]
    for block, processor in zip(net.transformer_blocks, processors, strict=True):
        block.attn1.set_processor(processor)
    time, label = torch.tensor([3]), torch.tensor([1])
    out = net(torch.randn(1, 4, 8, 8), timestep=time, class_labels=label).sample
    out.square().sum().backward()
    assert processors[1].lam.q1.grad is not None
    assert "transformer_blocks.0.attn1.processor.lam.q1" in net.state_dict()


def test_an_odd_number_of_heads_raises():
    attn = Attention(query_dim=24, heads=3, dim_head=8)
    attn.set_processor(DiffusersProcessor(8))
    with pytest.raises(ValueError, match="cannot be halved"):
        attn(torch.randn(1, 4, 24))
