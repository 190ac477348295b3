"""Compiled decoding: a static cache, and one graph per token.

A token's time is that of reading the weights and the cache, which `ops.linear` and the fused
attention do at the speed of memory, and that of PyTorch's small operations, which `torch.compile`
fuses.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import CompileConfig
from transformers.cache_utils import StaticCache


def compiled_generation() -> dict[str, Any]:
    """Return the arguments of `generate` that compile its decoding, on any device.

    Each batch size and each cache length is compiled anew; `max_length` or `max_new_tokens` sets
    the cache length. From `torch._dynamo.config.recompile_limit` of them on, decoding is no longer
    compiled, but continues.
    """
    compiling = CompileConfig(fullgraph=False, dynamic=False, mode="default")
    compiling._compile_all_devices = True  # else transformers compiles on GPUs only
    return {"cache_implementation": "static", "compile_config": compiling}


def compiled_step(
    model: Any, ids: Tensor, new_tokens: int
) -> tuple[Callable[[Tensor], Tensor], Any]:
    """Prefill a static cache and return a compiled step of greedy decoding, and the cache.

    Args:
        model: a causal language model.
        ids: the prompt [B, T].
        new_tokens: number of tokens that the cache has room for.

    Returns:
        A function from the last tokens [B, 1] to the next ones [B, 1], and the cache that it fills.
    """
    cache = StaticCache(config=model.config, max_cache_len=ids.shape[1] + new_tokens)
    model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    forward: Callable[..., Any] = torch.compile(model.forward, fullgraph=True, dynamic=False)

    def step(tokens: Tensor) -> Tensor:
        logits = forward(tokens, past_key_values=cache, use_cache=True).logits
        return logits[:, -1:].argmax(-1)

    return step, cache
