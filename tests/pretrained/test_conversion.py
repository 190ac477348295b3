"""Conversion to a differential model: equal at the start, trainable, rejected where unlike."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

from antiphase import AntiphaseForCausalLM
from antiphase.pretrained import DexConfig, to_differential, unchain
from tests.pretrained.small import SIZES, made, sequences

NO_HEAD_DIM = Qwen2Config(**{name: v for name, v in SIZES.items() if name != "head_dim"})


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "num_key_value_heads": 4}),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 1e4,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 16,
                }
            },
        ),
        ("mistral", {}),
    ],
)
def test_the_logits_are_equal_and_every_new_parameter_has_a_gradient(family, changes, tmp_path):
    model, ids = made(family, **changes), sequences(2, 40)
    ours = to_differential(model)
    assert isinstance(ours, AntiphaseForCausalLM)
    with torch.no_grad():
        expected = model(ids).logits
    torch.testing.assert_close(ours(ids).logits, expected, rtol=1e-4, atol=1e-4)
    ours(ids, labels=ids).loss.backward()
    for layer in ours.model.attention_layers:
        assert float(layer.lambda_proj.weight.grad.abs().min(dim=1).values.max()) > 0
        for head in layer.q_proj.weight.grad.unflatten(0, (-1, 8)):  # of both of a pair
            assert float(head.abs().max()) > 0
    ours.save_pretrained(tmp_path)
    with torch.no_grad():
        again = AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits
    torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-4)


def test_a_bf16_model_stays_bf16():
    model = made("llama").bfloat16()
    ours = to_differential(model)
    assert ours.dtype == torch.bfloat16
    with torch.no_grad():
        torch.testing.assert_close(
            ours(sequences()).logits, model(sequences()).logits, rtol=0.05, atol=0.05
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: made("qwen2"), "Qwen2ForCausalLM: has .*k_proj.bias, .*; supported are Llama"),
        (lambda: Qwen2ForCausalLM(NO_HEAD_DIM), "Qwen2ForCausalLM: has .*k_proj.bias, which Llama"),
        (
            lambda: StableLmForCausalLM(StableLmConfig(**SIZES)),
            r"StableLmForCausalLM: its config has no rms_norm_eps \(RMSNorm\); supported are",
        ),
        (
            lambda: GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2)),
            "GPT2LMHeadModel: has no attention with q_proj",
        ),
        (lambda: to_differential(made("llama")), "is differential already"),
        (lambda: made("qwen3"), "has model.layers.0.self_attn.k_norm.weight"),
        (lambda: made("gemma3"), "hidden_act is 'gelu"),
        (lambda: made("mistral", sliding_window=8), "has a sliding window of 8 tokens"),
        (lambda: GemmaForCausalLM(GemmaConfig(**SIZES)), "hidden_act|gelu"),
        (
            lambda: GraniteForCausalLM(GraniteConfig(**SIZES, residual_multiplier=0.5)).eval(),
            "computes something that ours does not",
        ),
    ],
)
def test_what_it_cannot_express_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        to_differential(make())


def test_other_positions_show_in_bf16_too():
    config = SmolLM3Config(**SIZES, no_rope_layers=[1, 0], pad_token_id=0)
    with pytest.raises(ValueError, match="computes something that ours does not"):
        to_differential(SmolLM3ForCausalLM(config).eval().bfloat16())


def test_an_unchained_model_is_folded_first_and_endings_are_kept():
    model = made("llama")
    model.generation_config.eos_token_id = [5, 6]
    assert to_differential(model).generation_config.eos_token_id == [5, 6]
    unchain(model, DexConfig(heads="all"))
    with pytest.raises(ValueError, match=r"has DEX inside; fold\(model\) first"):
        to_differential(model)


def test_v1_cannot_start_as_the_same_function():
    with pytest.raises(ValueError, match="only 'diff_v2' can start as the same function"):
        to_differential(made("llama"), "diff_v1")


def test_a_config_without_head_dim_is_converted_by_the_shapes_of_its_projections():
    sizes = {name: v for name, v in SIZES.items() if name != "head_dim"}
    model = SmolLM3ForCausalLM(SmolLM3Config(**sizes, no_rope_layers=[1, 1], pad_token_id=0)).eval()
    assert not hasattr(model.config, "head_dim")
    with torch.no_grad():
        torch.testing.assert_close(
            to_differential(model)(sequences()).logits, model(sequences()).logits
        )
