"""The RMS of a block's branches, against what the block's parts return."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from antiphase import AntiphaseForCausalLM, preset
from antiphase.analysis.branch_rms import branch_rms
from antiphase.attention import MECHANISMS

IDS = torch.randint(2, 40, (2, 16), generator=torch.Generator().manual_seed(0))


def model(attention="diff_v1", **changes):
    torch.manual_seed(0)
    return AntiphaseForCausalLM(preset("nano", attention, hidden_size=64, vocab_size=64, **changes))


def rms(x):
    return float(x.detach().double().square().mean().sqrt())


@pytest.mark.parametrize("attention", sorted(MECHANISMS))
def test_branches_are_what_attention_and_feed_forward_layer_return(attention):
    net = model(attention)
    seen = {"attention": [], "feed_forward": []}
    hooks = []
    for block in net.model.layers:
        for name, part in (("attention", block.self_attn), ("feed_forward", block.mlp)):
            hooks.append(
                part.register_forward_hook(lambda m, a, out, name=name: seen[name].append(rms(out)))
            )
    found = branch_rms(net, IDS)
    for hook in hooks:
        hook.remove()
    assert [b.attention for b in found] == pytest.approx(seen["attention"], rel=1e-5)
    assert [b.feed_forward for b in found] == pytest.approx(seen["feed_forward"], rel=1e-5)
    states = net(IDS, output_hidden_states=True).hidden_states
    assert [b.attention_stream for b in found] == pytest.approx([rms(s) for s in states[:2]])
    for branch in found:
        assert branch.attention_ratio == pytest.approx(branch.attention / branch.attention_stream)


def test_a_branch_that_is_scaled_down_is_measured_as_such():
    net = model("standard")
    before = branch_rms(net, IDS)
    with torch.no_grad():
        net.model.layers[0].self_attn.o_proj.weight.mul_(0.1)
        net.model.layers[0].mlp.down_proj.weight.zero_()
    after = branch_rms(net, IDS)
    assert after[0].attention_ratio == pytest.approx(0.1 * before[0].attention_ratio, rel=1e-4)
    assert after[0].feed_forward == 0
    assert after[0].attention_stream == before[0].attention_stream


def test_the_stream_starts_as_the_embeddings_at_step_0():
    net = model("standard", initializer_range=0.02).train()
    first = branch_rms(net, IDS)[0]
    assert first.attention_stream == pytest.approx(0.02, rel=0.1)
    assert net.training
    assert branch_rms(net.model, IDS)[0] == first  # the stack of blocks alone


def test_other_models_raise():
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    with pytest.raises(ValueError, match="LlamaForCausalLM has no Antiphase blocks"):
        branch_rms(LlamaForCausalLM(config), IDS)
