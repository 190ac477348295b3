"""Sizes: equal parameters by construction, the paper's presets; and invalid or unknown fields."""

import copy
import itertools
import json
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, LlamaConfig

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
def test_equal_parameters_for_any_shape(name, width, groups, feed_forward, bias):
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
    assert matched.intermediate_size == 680  # the config keeps what was requested
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
        ({"head_dim": 0}, "head_dim: got 0, expected at least 1"),
        ({"num_key_value_heads": 0}, "num_key_value_heads: got 0, expected at least 1"),
        ({"num_attention_heads": 0}, "num_attention_heads: got 0, expected at least 1"),
        ({"intermediate_size": 0}, "intermediate_size: got 0, expected at least 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: got 0, expected at least 1"),
        ({"num_hidden_layers": -1}, "num_hidden_layers: got -1, expected at least 1"),
        ({"vocab_size": 0}, "vocab_size: got 0, expected at least 1"),
        ({"initializer_range": -1}, "initializer_range: got -1, expected a standard deviation"),
        ({"initializer_range": 0}, "initializer_range: got 0, .* above 0, such as 0.02"),
        ({"initializer_range": float("nan")}, "initializer_range: got nan, expected a standard"),
        ({"sliding_window": 0}, "sliding_window: got 0, expected at least 1, or None"),
        ({"sliding_window": 4, "name": "fixed_noise"}, "fixed_noise keeps a running state"),
        ({"sliding_window": 4, "layer_types": ["sliding_attention"]}, "for each of 2 layers"),
        ({"attention_dropout": 1.0}, "attention_dropout: got 1.0, expected a probability"),
        ({"attention_dropout": -0.1}, "attention_dropout: got -0.1, expected a probability"),
        ({"attn_logit_softcapping": 0.0}, "attn_logit_softcapping: got 0.0, expected a number"),
    ],
)  # fmt: skip
def test_invalid_configs_say_what_to_change(fields, message):
    with pytest.raises(ValueError, match=message):
        config(**{"name": "diff_v1", **fields})


@pytest.mark.parametrize("match", ["parameters", "none"])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_only_mechanisms_that_rotate_heads_need_even_widths(name, match, tmp_path):
    fields = {"hidden_size": 40, "num_attention_heads": 8, "match": match}  # heads of width 5
    if any(width % 2 for width in MECHANISMS[name](40, 8).rotary_widths):
        with pytest.raises(ValueError, match=f"{name}: RoPE .* or position='none'"):
            preset("nano", name, **fields)
        fields["position"] = "none"  # what the error says
    net = AntiphaseForCausalLM(preset("nano", name, **fields))
    assert net.config.head_dim == 5
    assert net(torch.ones(2, 6, dtype=torch.long)).logits.isfinite().all()
    net.config.save_pretrained(tmp_path)
    assert AntiphaseConfig.from_pretrained(tmp_path).head_dim == 5


def test_an_unknown_preset_is_rejected():
    with pytest.raises(ValueError, match="preset: got 'huge', allowed are nano, micro"):
        preset("huge")


def test_presets_accept_any_field():
    cfg = preset("nano", "grouped", vocab_size=50, attention_options={"ratio": 1})
    assert (cfg.vocab_size, cfg.attention_options) == (50, {"ratio": 1})
    assert MECHANISMS["grouped"] is type(cfg.attention_layer(1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attenion": "standard"}, r"no field 'attenion'; did you mean 'attention'\?"),
        ({"num_heads": 7}, r"no field 'num_heads'; did you mean 'num_attention_heads'\?"),
        ({"num_label": 7}, r"no field 'num_label'; did you mean 'num_labels'\?"),
        ({"nonsense": 1}, "no field 'nonsense'; its fields are attention, attention_options"),
        ({"ratio": 2}, "no field 'ratio'; its fields are"),  # of another mechanism
        ({"temperature": 0.5}, "'temperature': it is a setting of generation"),
        ({"use_sliding_window": True}, "use_sliding_window: got True, .* or pass False"),
        ({"resid_pdrop": 0.1}, "resid_pdrop: got 0.1"),
        ({"hidden_act": "gelu"}, "hidden_act: got 'gelu', .* pass 'silu'"),
        ({"hidden_act": "silu", "feed_forward": "relu"}, "hidden_act: got 'silu', .* pass 'relu'"),
        ({"layer_types": ["chunked_attention"] * 2}, "layer_types: got 'chunked_attention', allow"),
        ({"layer_types": ["sliding_attention"] * 2}, "'sliding_attention' needs a sliding_window"),
        (
            {"layer_types": ["full_attention"] * 2, "sliding_window": 4},
            "layer_types: got .* with sliding_window=4, .* a sliding one among them",
        ),
        ({"is_encoder_decoder": True}, "is_encoder_decoder: got True"),
        ({"model_type": "llama"}, "model_type: got 'llama', .* pass 'antiphase'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: got 0.5"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "RoPE rotates all channels",
        ),
    ],
)  # fmt: skip
def test_a_field_without_effect_raises(fields, message):
    with pytest.raises(ValueError, match=message):
        config("diff_v1", **fields)
    with pytest.raises(ValueError, match=message):
        preset("nano", **fields)


def test_a_misspelt_field_of_a_preset_raises():
    with pytest.raises(ValueError, match=r"no field 'hidden_sz'; did you mean 'hidden_size'\?"):
        preset("nano", hidden_sz=3)
    with pytest.raises(ValueError, match=r"allowed are nano, .* did you mean 'micro'\?"):
        preset("mikro")


def test_an_option_given_as_a_field_raises_and_says_where_it_belongs():
    with pytest.raises(ValueError, match=r"option of 'grouped'; pass attention_options=.'ratio'"):
        preset("nano", attention="grouped", ratio=3)
    with pytest.raises(ValueError, match=r"option of 'top_k'; pass attention_options=.'k'"):
        AntiphaseConfig(attention="top_k", k=3)


def test_layers_have_the_window_of_their_type():
    every = preset("nano", sliding_window=16)
    assert every.layer_types == ["sliding_attention"] * 2
    mixed = preset("nano", sliding_window=16, layer_types=["full_attention", "sliding_attention"])
    assert [mixed.attention_layer(i).window for i in range(2)] == [None, 16]
    assert preset("nano").attention_layer().window is None
    assert not hasattr(preset("nano"), "layer_types")


def test_a_config_older_than_windows_and_dropout_loads_without_them():
    fields = config("diff_v1").to_dict()
    for name in ("sliding_window", "attention_dropout", "attn_logit_softcapping"):
        del fields[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = AntiphaseConfig.from_dict(fields)
    layer = loaded.attention_layer()
    assert (layer.window, layer.dropout, layer.softcap) == (None, 0.0, None)


OFF = {
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "hidden_act": "silu",
    "layer_types": ["full_attention"] * 2,
    "mlp_bias": False,
    "pretraining_tp": 1,
    "sliding_window": None,
    "use_sliding_window": False,
}


@pytest.mark.parametrize(
    "fields",
    [
        OFF,
        {"hidden_act": "relu", "feed_forward": "relu"},
        {"num_labels": 5, "problem_type": "regression", "dtype": "bfloat16"},
        {"output_hidden_states": True, "attn_implementation": "sdpa", "architectures": ["One"]},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ],
    ids=["off", "relu", "labels", "base fields", "rope"],
)
@pytest.mark.parametrize("name", ["diff_v1", "low_rank_noise"])
def test_base_fields_and_off_values_are_accepted_and_every_copy_is_equal(name, fields, tmp_path):
    cfg = config(name, **fields)
    known = cfg.to_dict()
    assert AntiphaseConfig(**known).to_dict() == known
    assert AntiphaseConfig.from_dict(known).to_dict() == known
    assert copy.deepcopy(cfg).to_dict() == known
    cfg.save_pretrained(tmp_path)
    same = {"_name_or_path": 0, "auto_map": 0}  # where it was loaded from, the code beside it
    for loaded in (
        AntiphaseConfig.from_pretrained(tmp_path),
        AutoConfig.from_pretrained(tmp_path),
        AntiphaseConfig.from_json_file(tmp_path / "config.json"),
    ):
        assert loaded.to_dict() | same == known | same


def test_the_fields_of_a_llama_are_accepted():
    llama = LlamaConfig(num_key_value_heads=8).to_dict()
    del llama["model_type"]
    cfg = AntiphaseConfig(attention="standard", **llama)
    assert (cfg.hidden_size, cfg.num_key_value_heads, cfg.intermediate_size) == (4096, 8, 11008)


def test_an_unknown_field_of_a_saved_config_warns_and_is_saved_again(tmp_path):
    path = tmp_path / "config.json"
    config("diff_v1").save_pretrained(tmp_path)
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"of_a_later_version": [1], "temperature": 0.5}))
    for load in (AntiphaseConfig.from_pretrained, AutoConfig.from_pretrained):
        with pytest.warns(UserWarning, match="unknown fields of_a_later_version are kept"):
            cfg = load(tmp_path)
        assert cfg.of_a_later_version == [1]
        cfg.save_pretrained(tmp_path / "again")
        again = json.loads((tmp_path / "again" / "config.json").read_text())
        assert again["of_a_later_version"] == [1]
        assert copy.deepcopy(cfg).of_a_later_version == [1]
    with pytest.warns(UserWarning, match="of_a_later_version"):
        model = AntiphaseForCausalLM.from_pretrained(None, config=load(tmp_path), state_dict={})
    assert model.config.of_a_later_version == [1]


def test_a_saved_config_with_something_not_implemented_raises(tmp_path):
    config("diff_v1").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"resid_pdrop": 0.1}))
    with pytest.raises(ValueError, match=r"resid_pdrop: got 0\.1"):
        AutoConfig.from_pretrained(tmp_path)


def test_keywords_of_loading_are_validated_like_fields(tmp_path):
    AntiphaseForCausalLM(config("low_rank_noise")).save_pretrained(tmp_path)
    options = {"attention_options": {}}
    loaders = (
        AntiphaseConfig.from_pretrained,
        AutoConfig.from_pretrained,
        AntiphaseForCausalLM.from_pretrained,
    )
    for load in loaders:
        with pytest.raises(ValueError, match=r"embd_pdrop: got 0.1"):
            load(tmp_path, embd_pdrop=0.1)
        with pytest.raises(ValueError, match=r"sliding_window: got 4, .* a running state"):
            load(tmp_path, sliding_window=4)
        with pytest.raises(ValueError, match="attention: got 'dif_v1'"):
            load(tmp_path, attention="dif_v1")
        with pytest.raises((ValueError, TypeError), match="attenion"):
            load(tmp_path, attenion="standard")
    changed = AntiphaseConfig.from_pretrained(tmp_path, attention="standard", **options)
    assert not hasattr(changed, "layer_types")  # derived again: no running state
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = AntiphaseForCausalLM.from_pretrained(
            tmp_path, use_cache=False, attn_implementation="reference", output_hidden_states=True
        )
    assert (net.config.use_cache, net.config._attn_implementation) == (False, "reference")
