"""The scale of a block's two branches: what attention and feed-forward layer add to the stream."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from antiphase.models.layers import Block


@dataclass(frozen=True)
class BranchRMS:
    """Root mean squares over sequences, tokens and channels, of one block.

    Attributes:
        attention_stream: of the residual stream that the attention branch is added to.
        attention: of what attention adds to it.
        feed_forward_stream: of the residual stream that the feed-forward branch is added to.
        feed_forward: of what the feed-forward layer adds to it.
    """

    attention_stream: float
    attention: float
    feed_forward_stream: float
    feed_forward: float

    @property
    def attention_ratio(self) -> float:
        """Return the RMS of the attention branch over that of its stream."""
        return self.attention / self.attention_stream

    @property
    def feed_forward_ratio(self) -> float:
        """Return the RMS of the feed-forward branch over that of its stream."""
        return self.feed_forward / self.feed_forward_stream


@torch.no_grad()
def branch_rms(model: nn.Module, ids: Tensor) -> list[BranchRMS]:
    """Measure the branches of every block in one forward pass.

    A branch is the difference of the stream after and before it, so any scaling inside the block
    is included.

    Args:
        model: any Antiphase model; its mode (train or eval) is kept.
        ids: token ids, [B, T].

    Returns:
        One entry per block, first to last.

    Raises:
        ValueError: the model has no Antiphase blocks.
    """
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    if not blocks:
        raise ValueError(
            f"branch_rms: {type(model).__name__} has no Antiphase blocks; give an Antiphase model"
        )
    middle: list[Tensor] = []
    found: list[BranchRMS] = []

    def keep_middle(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        middle.append(args[0].float())

    def measure(module: nn.Module, args: tuple[Any, ...], out: tuple[Tensor, Any]) -> None:
        before, between, after = args[0].float(), middle.pop(), out[0].float()
        parts = (before, between - before, between, after - between)
        found.append(BranchRMS(*(_rms(part) for part in parts)))

    hooks = [
        block.post_attention_layernorm.register_forward_pre_hook(keep_middle) for block in blocks
    ]
    hooks += [block.register_forward_hook(measure) for block in blocks]
    training = model.training
    model.eval()
    try:
        model(input_ids=ids.to(next(model.parameters()).device), use_cache=False)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return found


def _rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())
