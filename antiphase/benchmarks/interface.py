"""A Llama of transformers with PyTorch's attention, and with ours (`attn_implementation`)."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from antiphase.allocator import keep_freed_memory
from antiphase.benchmarks import timing
from antiphase.benchmarks.adapter import SHAPE
from antiphase.models.attention_interface import NAME

BASELINE = "sdpa"
TRAINING, FORWARD = "training step", "forward"


@dataclass(frozen=True)
class InterfaceCost:
    """The time of one implementation in one workload: ratios to PyTorch's, and seconds."""

    workload: str
    implementation: str
    wall: timing.Ratio
    cpu: timing.Ratio
    seconds: float


def compare(
    batch: int, length: int, bf16: bool, rounds: int, shape: dict[str, int] | None = None
) -> list[InterfaceCost]:
    """Time both implementations in turns.

    Args:
        batch: Number of sequences.
        length: Tokens of each.
        bf16: Run under autocast to bf16; the weights are fp32.
        rounds: Number of measured rounds.
        shape: Fields of the configuration; default: those of SmolLM2-135M.

    Returns:
        The cost of each implementation, by workload, PyTorch's first.
    """
    keep_freed_memory()  # as a training run does
    torch.manual_seed(0)
    config = LlamaConfig(**(SHAPE if shape is None else shape))
    base = LlamaForCausalLM(config)
    base.set_attn_implementation(BASELINE)
    models = {BASELINE: base, NAME: copy.deepcopy(base)}
    models[NAME].set_attn_implementation(NAME)
    ids = torch.randint(0, config.vocab_size, (batch, length))
    found = []
    for workload, work in ((TRAINING, _training), (FORWARD, _forward)):
        samples = timing.interleave({n: work(m, ids, bf16) for n, m in models.items()}, rounds)
        found += [
            InterfaceCost(
                workload,
                name,
                timing.ratio(times, samples[BASELINE], "wall"),
                timing.ratio(times, samples[BASELINE], "cpu"),
                timing.seconds(times, "wall"),
            )
            for name, times in samples.items()
        ]
    return found


def _training(model: LlamaForCausalLM, ids: Tensor, bf16: bool) -> timing.Work:
    """Return a forward and a backward pass; the optimiser is the same for both."""

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        model.zero_grad()

    return step


def _forward(model: LlamaForCausalLM, ids: Tensor, bf16: bool) -> timing.Work:
    """Return a forward pass that ends with the logits of the last token."""

    @torch.no_grad()
    def read() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            model(input_ids=ids, use_cache=False, logits_to_keep=1)

    return read
