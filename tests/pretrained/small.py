"""Tiny models of several families, built on the spot, and random sequences for them."""

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from antiphase.tasks.text.tokenizer import make_tokenizer
from antiphase.training import load_recipe

SIZES = {
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}


def llama(**changes):
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes}))


def qwen2():
    return Qwen2ForCausalLM(Qwen2Config(**SIZES))


def qwen3():
    return Qwen3ForCausalLM(Qwen3Config(**SIZES))


def mistral(**changes):
    return MistralForCausalLM(MistralConfig(**{**SIZES, "sliding_window": None, **changes}))


def gemma3():
    return Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, sliding_window=8))


FAMILIES = {"llama": llama, "qwen2": qwen2, "qwen3": qwen3, "mistral": mistral, "gemma3": gemma3}


def made(family, seed=0, **changes):
    """Return a model in eval mode whose weights are large enough to matter."""
    torch.manual_seed(seed)
    model = FAMILIES[family](**changes).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model


def write_base(folder):
    """Write a model with a byte tokenizer to folder/model, and folder/text.txt to train on."""
    made("llama", max_position_embeddings=1024).save_pretrained(folder / "model")
    make_tokenizer("bytes", []).save_pretrained(folder / "model")
    lines = [f"line {i} says {i * i % 97} and {'abc'[i % 3]}\n" for i in range(3000)]
    (folder / "text.txt").write_text("".join(lines))
    return folder


def tuning_recipe(base):
    """Return a recipe of seconds that unchains what `write_base` wrote."""
    return load_recipe("unchain").changed(
        start=str(base / "model"),
        task_options={"text": [str(base / "text.txt")], "length": 32},
        steps=8,
        batch_size=2,
        lr=1e-3,
        threads=1,
        calibration_examples=2,
        evaluate_examples=3,
        log_every=2,
        checkpoint_every=4,
    )


def sequences(count=2, length=12, seed=0):
    return torch.randint(0, 257, (count, length), generator=torch.Generator().manual_seed(seed))
