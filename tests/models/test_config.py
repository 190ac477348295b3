"""Sizes: equal parameters by construction, the paper's presets, and configs that cannot be."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase.attention import MECHANISMS
from antiphase.models import PRESETS, AntiphaseConfig, AntiphaseForCausalLM, preset
from tests.attention.cases import NAMES
from tests.models.tiny import config

PUBLISHED = {"830m": 830e6, "1.4b": 1.4e9, "2.8b": 2.8e9, "6.8b": 6.8e9, "13.1b": 13.1e9}
SMALL = {"nano": 0.4e6, "micro": 3e6, "mini": 12e6, "small": 100e6}


def count(cfg: AntiphaseConfig) -> int:
    with torch.device("meta"):
        return AntiphaseForCausalLM(cfg).num_parameters()


@pytest.mark.parametrize("size", PUBLISHED)
@pytest.mark.parametrize("name", ["standard", "diff_v1"])
def test_the_papers_sizes(size, name):
    assert count(preset(size, name)) == pytest.approx(PUBLISHED[size], rel=0.01)


@pytest.mark.parametrize("size", SMALL)
def test_the_small_sizes_are_about_what_they_say(size):
    assert count(preset(size, "standard")) == pytest.approx(SMALL[size], rel=0.15)


def test_every_size_has_a_test():
    assert {*PUBLISHED, *SMALL} == set(PRESETS)


@pytest.mark.parametrize("size", ["nano", "micro", "mini", "1.4b"])
def test_any_two_mechanisms_have_equal_parameters(size):
    counts = {name: count(preset(size, name)) for name in NAMES}
    for a, b in itertools.combinations(counts.values(), 2):
        assert abs(a - b) / min(a, b) < 0.01


@settings(deadline=None, max_examples=25)
@given(
    name=st.sampled_from(NAMES),
    width=st.sampled_from([32, 64, 96]),
    groups=st.sampled_from([1, 2]),
    feed_forward=st.sampled_from(["swiglu", "relu"]),
    bias=st.booleans(),
)
def test_equal_parameters_whatever_the_shape(name, width, groups, feed_forward, bias):
    fields = {
        "hidden_size": 4 * width,
        "num_attention_heads": 8,
        "num_key_value_heads": 8 // groups,
        "feed_forward": feed_forward,
        "attention_bias": bias,
        "num_hidden_layers": 2,
        "vocab_size": 100,
    }
    ours = count(AntiphaseConfig(attention=name, **fields))
    baseline = count(AntiphaseConfig(attention="standard", **fields))
    assert abs(ours - baseline) / baseline < 0.005


@pytest.mark.parametrize("name", NAMES)
def test_match_none_keeps_the_width(name):
    cfg = preset("micro", name, match="none")
    assert cfg.feed_forward_width == cfg.intermediate_size == 680
    matched = preset("micro", name)
    assert matched.intermediate_size == 680  # what was asked for stays in the config
    with torch.device("meta"):
        block = AntiphaseForCausalLM(matched).model.layers[0]
    assert block.mlp.up_proj.out_features == matched.feed_forward_width


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_attention_heads": 7}, "7 heads do not divide hidden_size 64"),
        ({"num_key_value_heads": 3}, "3 key/value heads do not divide 8 heads"),
        ({"num_key_value_heads": 1}, "diff_v1 pairs the baseline's heads, and 1 cannot be halved"),
        ({"name": "diff_v3"}, "attention: got 'diff_v3', allowed are standard, diff_v1"),
        ({"attention_options": {"k": 4}}, "'diff_v1' has no option 'k'; its options are lam"),
        ({"match": "flops"}, "match: got 'flops', allowed are parameters, none"),
        ({"norm": "batch"}, "norm: got 'batch', allowed are rms, layer"),
        ({"position": "alibi"}, "position: got 'alibi', allowed are rope, sinusoidal, none"),
        ({"feed_forward": "moe"}, "feed_forward: got 'moe', allowed are swiglu, relu"),
        ({"head_dim": 7}, "heads of width .7,.; use even widths, or position='none'"),
        ({"name": "diff_v2", "intermediate_size": 8}, "raise intermediate_size or use match"),
    ],
)  # fmt: skip
def test_bad_configs_say_what_to_change(fields, message):
    with pytest.raises(ValueError, match=message):
        config(**{"name": "diff_v1", **fields})


def test_an_unknown_preset_is_refused():
    with pytest.raises(ValueError, match="preset: got 'huge', allowed are nano, micro"):
        preset("huge")


def test_presets_take_any_field():
    cfg = preset("nano", "grouped", vocab_size=50, attention_options={"ratio": 1})
    assert (cfg.vocab_size, cfg.attention_options) == (50, {"ratio": 1})
    assert MECHANISMS["grouped"] is type(cfg.attention_layer(1))
