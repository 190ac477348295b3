"""Make transformers' DiffLlama faster: the fused op in place of its attention, same outputs.

    python examples/accelerate_diffllama.py --length 1024 --rounds 5

A small model with random weights is timed as it is and accelerated, in turns, so that a slow moment
of the machine hits both. With weights of your own: DiffLlamaForCausalLM.from_pretrained(...).
"""

import argparse
import statistics
import time

import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

import antiphase


def training_step(model: torch.nn.Module, ids: torch.Tensor) -> float:
    """Return the seconds of one forward and backward pass."""
    start = time.perf_counter()
    model(ids, labels=ids, use_cache=False).loss.backward()
    model.zero_grad()
    return time.perf_counter() - start


def main() -> None:
    """Print the difference of the outputs and the ratio of the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    config = DiffLlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=options.length,
    )
    model = DiffLlamaForCausalLM(config)
    ids = torch.randint(0, 256, (1, options.length))
    with torch.no_grad():
        original = model(ids).logits
        acceleration = antiphase.accelerate(model)  # in place
        difference = (model(ids).logits - original).abs().max()
        acceleration.undo()
    print(f"largest difference of a logit: {difference:.1e}")

    ratios = []
    for round_number in range(options.rounds + 1):
        before = training_step(model, ids)
        acceleration = antiphase.accelerate(model)
        after = training_step(model, ids)
        acceleration.undo()
        if round_number:  # the first round warms up
            ratios.append(before / after)
    print(f"training step, T = {options.length}: {statistics.median(ratios):.2f} times as fast")


if __name__ == "__main__":
    main()
