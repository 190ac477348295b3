"""What DEX costs in decoding: the base model, the same with the adapter, and with it folded."""

import copy
from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from antiphase.benchmarks import timing
from antiphase.benchmarks.model import decoding
from antiphase.pretrained import DexConfig, fold, unchain

BASE = "base"
# of SmolLM2-135M; random weights decode as fast as trained ones
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
class Cost:
    """A model's time over the base model's, and its seconds."""

    name: str
    wall: timing.Ratio
    cpu: timing.Ratio
    seconds: float


def models(dtype: torch.dtype) -> dict[str, LlamaForCausalLM]:
    """Return the three, from the same weights."""
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(**SHAPE)).to(dtype)
    half = [list(range(0, 9, 2)) for _ in range(SHAPE["num_hidden_layers"])]
    made = {BASE: base}
    for name in ("adapter", "folded"):
        unchained = unchain(copy.deepcopy(base), DexConfig(heads=half, anneal=10))
        unchained.step = 5
        made[name] = fold(unchained) if name == "folded" else unchained.base_model
    return made


def race(length: int, new_tokens: int, dtype: torch.dtype, rounds: int) -> list[Cost]:
    """Let the three decode in turns."""
    ids = torch.randint(0, SHAPE["vocab_size"], (1, length))
    work = {name: decoding(m, ids, new_tokens) for name, m in models(dtype).items()}
    samples = timing.interleave(work, rounds)
    return [
        Cost(
            name,
            timing.ratio(taken, samples[BASE], "wall"),
            timing.ratio(taken, samples[BASE], "cpu"),
            timing.seconds(taken, "wall"),
        )
        for name, taken in samples.items()
    ]
