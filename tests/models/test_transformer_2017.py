"""The preset of 2017 against torch.nn.Transformer, and the paper's table."""

import pytest
import torch
from torch import nn

from antiphase.models import AntiphaseForConditionalGeneration, transformer_2017
from antiphase.models.layers import sinusoidal
from tests.models.tiny import left_padded, token_ids

D, H, L, WIDTH = 64, 4, 2, 256


def ours(**fields):
    torch.manual_seed(0)
    cfg = transformer_2017(
        "nano", vocab_size=61, hidden_size=D, num_attention_heads=H, num_hidden_layers=L, **fields
    )
    net = AntiphaseForConditionalGeneration(cfg).eval()
    with torch.no_grad():  # biases and norms start at 0 and 1, which would hide a mistake
        for name, parameter in net.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return net


def theirs(net):
    """Return torch's Transformer with the same weights; it has no norm after the last block."""
    shape = {"dropout": 0.0, "activation": "relu", "batch_first": True, "layer_norm_eps": 1e-5}
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(D, H, WIDTH, **shape), L, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, H, WIDTH, **shape), L)
    peer = nn.Transformer(
        D, H, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
    ).eval()
    with torch.no_grad():
        for part, stack in ((peer.encoder, net.model.encoder), (peer.decoder, net.model.decoder)):
            for layer, block in zip(part.layers, stack.layers, strict=True):
                copy_attention(layer.self_attn, block.self_attn)
                norms = [(layer.norm1, block.input_layernorm)]
                if block.cross_attn is not None:
                    copy_attention(layer.multihead_attn, block.cross_attn)
                    norms.append((layer.norm2, block.cross_attention_layernorm))
                last = layer.norm2 if block.cross_attn is None else layer.norm3
                norms.append((last, block.post_attention_layernorm))
                pairs = (layer.linear1, block.mlp.up_proj), (layer.linear2, block.mlp.down_proj)
                for to, of in (*pairs, *norms):
                    to.load_state_dict(of.state_dict())
    return peer


def copy_attention(to, of):
    projections = (of.q_proj, of.k_proj, of.v_proj)
    to.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
    to.out_proj.weight.copy_(of.o_proj.weight)
    for bias, parts in ((to.in_proj_bias, projections), (to.out_proj.bias, (of.o_proj,))):
        zero = torch.zeros(D)
        bias.copy_(torch.cat([zero if p.bias is None else p.bias for p in parts]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("bias", [False, True], ids=["paper", "biases"])
def test_outputs_and_gradients_are_those_of_torch(bias, dtype):
    net = ours(attention_bias=bias).to(dtype)
    peer = theirs(net).to(dtype)
    source, mask = left_padded(token_ids(B=3, T=11), [11, 7, 4])
    target = token_ids(B=3, T=7, seed=2)
    E = net.get_input_embeddings().weight.detach()

    def embedded(ids, positions):
        return E[ids] * D**0.5 + sinusoidal(positions, D, dtype)

    # Left padding: positions count tokens, so that the sides of padding do not differ.
    x = embedded(source, (mask.cumsum(1) - 1).clamp_min(0)).requires_grad_()
    y = embedded(target, torch.arange(7)[None])
    future = nn.Transformer.generate_square_subsequent_mask(7).to(dtype)
    padding = mask == 0
    want = peer(
        x, y, tgt_mask=future, src_key_padding_mask=padding, memory_key_padding_mask=padding
    )
    got = net.model(source, mask, decoder_input_ids=target).last_hidden_state
    close = (
        {"atol": 1e-12, "rtol": 1e-10} if dtype == torch.float64 else {"atol": 2e-5, "rtol": 1e-4}
    )
    torch.testing.assert_close(got, want, **close)
    want.square().sum().backward()
    got.square().sum().backward()
    first = net.model.encoder.layers[0], peer.encoder.layers[0]
    torch.testing.assert_close(
        first[0].mlp.up_proj.weight.grad,
        first[1].linear1.weight.grad,
        atol=close["atol"] * 100,
        rtol=close["rtol"] * 10,
    )
    cross = net.model.decoder.layers[1].cross_attn, peer.decoder.layers[1].multihead_attn
    torch.testing.assert_close(
        cross[0].q_proj.weight.grad,
        cross[1].in_proj_weight.grad[:D],
        atol=close["atol"] * 100,
        rtol=close["rtol"] * 10,
    )
    logits = net(source, mask, decoder_input_ids=target).logits
    torch.testing.assert_close(logits, want @ E.T, **{**close, "atol": close["atol"] * 10})


def test_the_preset_is_the_papers():
    """arXiv 1706.03762, table 3: 65 and 213 million parameters."""
    for size, millions in (("base", 65), ("big", 213)):
        with torch.device("meta"):
            net = AntiphaseForConditionalGeneration(transformer_2017(size))
        assert abs(net.num_parameters() / 1e6 / millions - 1) < 0.05
    cfg = transformer_2017()
    assert (cfg.hidden_size, cfg.feed_forward_width, cfg.residual_dropout) == (512, 2048, 0.1)
    assert transformer_2017("big").residual_dropout == 0.3
    block = net.model.decoder.layers[0]
    assert [m.p for m in (block.dropout, net.model.encoder.dropout)] == [0.3, 0.3]
    assert isinstance(block.cross_attention_layernorm, nn.LayerNorm)


def test_embedded_tokens_start_at_the_scale_of_the_positions():
    net = ours()
    x = net.model.encoder._embed(token_ids())
    assert 0.8 < x.std() < 1.2


@torch.no_grad()
def test_a_padding_token_and_inputs_that_are_embedded_already():
    net = ours()
    source, target = token_ids(B=2, T=5), token_ids(B=2, T=4, seed=2)
    embed = net.model.encoder._embed
    want = net(source, decoder_input_ids=target).logits
    got = net(inputs_embeds=embed(source), decoder_inputs_embeds=embed(target)).logits
    torch.testing.assert_close(got, want)
