"""The cost of DEX in decoding: the base model, the same with the adapter, and with it folded."""

import copy
from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from antiphase.benchmarks import timing
from antiphase.benchmarks.model import decoding
from antiphase.pretrained import DexConfig, fold, unchain

BASE = "base"
# The shape of SmolLM2-135M; random weights decode as fast as trained ones.
SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class AdapterCost:
    """The decoding time of one model: ratios to the base model, and seconds."""

    name: str
    wall: timing.Ratio
    cpu: timing.Ratio
    seconds: float


def build_models(dtype: torch.dtype) -> dict[str, LlamaForCausalLM]:
    """Return the base model, the adapted one and the folded one, from the same weights."""
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(**SHAPE)).to(dtype)
    half = [list(range(0, 9, 2)) for _ in range(SHAPE["num_hidden_layers"])]
    models = {BASE: base}
    for name in ("adapter", "folded"):
        unchained = unchain(copy.deepcopy(base), DexConfig(heads=half, anneal=10))
        unchained.step = 5
        models[name] = fold(unchained) if name == "folded" else unchained.base_model
    return models


def compare(length: int, new_tokens: int, dtype: torch.dtype, rounds: int) -> list[AdapterCost]:
    """Time the decoding of the three models.

    Args:
        length: Number of tokens in the context.
        new_tokens: Number of tokens to decode after it.
        dtype: Dtype of the weights.
        rounds: Number of measured rounds.

    Returns:
        The cost of each model, the base model first.
    """
    ids = torch.randint(0, SHAPE["vocab_size"], (1, length))
    work = {name: decoding(model, ids, new_tokens) for name, model in build_models(dtype).items()}
    samples = timing.interleave(work, rounds)
    return [
        AdapterCost(
            name,
            timing.ratio(times, samples[BASE], "wall"),
            timing.ratio(times, samples[BASE], "cpu"),
            timing.seconds(times, "wall"),
        )
        for name, times in samples.items()
    ]
