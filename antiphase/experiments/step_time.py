"""The time of a training step on this machine: what the announced cost of a study is made of."""

import time
from typing import Any

import torch
from torch import Tensor

from antiphase.allocator import keep_freed_memory

STEPS = 3  # timed, after one that warms up


def step_seconds(model: Any, batch: Tensor, precision: str) -> tuple[float, float]:
    """Time steps as a run performs them, on one thread.

    Args:
        model: a causal language model.
        batch: tokens [B, T].
        precision: of the recipe.

    Returns:
        CPU seconds of a step (without the optimiser) and of a forward pass. Other load on the
        machine hardly changes them.
    """
    keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def forward() -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            return model(input_ids=batch, labels=batch, use_cache=False).loss

    begin = 0.0
    for step in range(STEPS + 1):
        if step == 1:
            begin = time.process_time()
        forward().backward()
    trained = time.process_time() - begin
    model.zero_grad()
    with torch.no_grad():
        begin = time.process_time()
        forward()
        read = time.process_time() - begin
    torch.set_num_threads(threads)
    return trained / STEPS, read
