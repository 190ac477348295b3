"""The maps of a model, layer by layer, at the rows that are asked for.

Only those rows are written down, so that contexts of thousands of tokens fit; the model itself runs
on its own fast kernels.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphase.attention import Attention
from antiphase.attention.heads import Heads, Inputs
from antiphase.models import AntiphaseForCausalLM
from antiphase.models.attention_hooks import AttentionCall, attention_hook
from antiphase.models.weights import from_diffllama
from antiphase.ops import repeat_heads


@dataclass
class LayerMaps:
    """One layer's maps at n rows, [B, h, n, T] in fp32; a layer with one map has no noise."""

    signal: Tensor
    difference: Tensor  # the map that meets V: signal - lam * noise
    noise: Tensor | None = None
    lam: Tensor | None = None  # [B, h, n, 1]
    scores: list[Tensor] = field(default_factory=list)  # of each map; -inf where nothing is seen
    outputs: Tensor | None = None  # [B, T, h, dv]: what each head gives to W_O


@dataclass
class Captured:
    """What a model did with a batch."""

    layers: list[LayerMaps]
    rows: Tensor  # [B, n]
    logits: Tensor  # [B, n, vocabulary], at those rows
    hidden: tuple[Tensor, ...] = ()  # [B, T, D], before the first layer and after each


@torch.no_grad()
def capture(
    model: PreTrainedModel,
    ids: Tensor,
    rows: Tensor | None = None,
    *,
    hidden: bool = False,
    scores: bool = False,
    outputs: bool = False,
) -> Captured:
    """Return the maps of every layer for texts [B, T] at rows [B, n] (default: the last one).

    Takes our models, transformers' DiffLlama (as the same model in our form) and any Hugging Face
    causal model that goes through transformers' attention interface.
    """
    if type(model).__name__ == "DiffLlamaForCausalLM":
        model = from_diffllama(model)
    B, T = ids.shape
    rows = torch.full((B, 1), T - 1) if rows is None else rows
    if rows.shape[0] != B or rows.min() < 0 or rows.max() >= T:
        raise ValueError(
            f"rows: got shape {tuple(rows.shape)} up to {int(rows.max())}, expected [B, n] = "
            f"[{B}, n] below {T}"
        )
    rows = rows.to(model.device)
    watch = _ours if isinstance(model, AntiphaseForCausalLM) else _foreign
    training = model.training
    model.eval()
    layers: list[LayerMaps] = []
    wanted, where = rows.unique(return_inverse=True)  # logits of all tokens would not fit
    only = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        only = {"logits_to_keep": wanted}
    try:
        with watch(model, rows, layers, scores, outputs):
            out = model(
                input_ids=ids.to(model.device), use_cache=False, output_hidden_states=hidden, **only
            )
    finally:
        model.train(training)
    if not layers:
        raise ValueError(
            f"{type(model).__name__}: does not go through transformers' attention interface, so "
            "its maps cannot be seen"
        )
    place = where if only else rows
    logits = out.logits.gather(1, place[..., None].expand(-1, -1, out.logits.shape[-1]))
    return Captured(layers, rows, logits.float(), out.hidden_states if hidden else ())


def _visible(rows: Tensor, T: int) -> Tensor:
    return torch.arange(T, device=rows.device) <= rows[:, None, :, None]  # [B, 1, n, T]


def _at(t: Tensor | None, rows: Tensor) -> Tensor | None:
    """Return t [B, h, T, w] at those rows; what does not depend on the row stays."""
    if t is None or t.dim() < 4 or t.shape[2] == 1:
        return t
    index = rows[:, None, :, None].expand(-1, t.shape[1], -1, t.shape[3])
    return t.gather(2, index)


@contextlib.contextmanager
def _ours(
    model: AntiphaseForCausalLM,
    rows: Tensor,
    layers: list[LayerMaps],
    scores: bool,
    outputs: bool,
) -> Iterator[None]:
    """Project again beside each layer's own pass, and write down the rows' maps."""

    def look(layer: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        asked = at_rows(_project(layer, args[0], kwargs), rows)
        found = layer.maps(asked, causal=False, mask=_visible(rows, asked.k.shape[2]))
        kept = LayerMaps(
            found["signal"].float(),
            found["difference"].float(),
            found["noise"].float() if "noise" in found else None,
            found["lam"].float() if "lam" in found else None,
        )
        if scores:
            pairs = [(asked.q, asked.k), (asked.q2, asked.k2)]
            kept.scores = [
                _scores(q, k).masked_fill(~_visible(rows, k.shape[2]), -torch.inf)
                for q, k in pairs
                if q is not None and k is not None and k.dim() == 4
            ]
        layers.append(kept)

    def keep_outputs(layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Tensor]) -> None:
            heads = layers[layer].signal.shape[1]
            layers[layer].outputs = args[0].unflatten(-1, (heads, -1)).float()

        return hook

    hooks = [
        layer.register_forward_pre_hook(look, with_kwargs=True)
        for layer in model.model.attention_layers
    ]
    if outputs:
        hooks += [
            layer.o_proj.register_forward_pre_hook(keep_outputs(i))
            for i, layer in enumerate(model.model.attention_layers)
        ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def projections(model: AntiphaseForCausalLM, ids: Tensor) -> tuple[list[Heads], tuple[Tensor, ...]]:
    """Return queries, keys and values of every layer, and the stream before each, then the last."""
    found: list[Heads] = []

    def look(layer: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.append(_project(layer, args[0], kwargs))

    hooks = [
        layer.register_forward_pre_hook(look, with_kwargs=True)
        for layer in model.model.attention_layers
    ]
    try:
        out = model(input_ids=ids, use_cache=False, output_hidden_states=True)
    finally:
        for hook in hooks:
            hook.remove()
    return found, out.hidden_states


def _project(layer: Attention, x: Tensor, kwargs: dict[str, Any]) -> Heads:
    """Return a layer's heads from what its pass is given."""
    return layer.project(Inputs(x, x, kwargs["rotary"], kwargs["rotary"], None))


def at_rows(heads: Heads, rows: Tensor) -> Heads:
    """Return heads whose queries are those of the rows; keys and values stay whole."""
    q = _at(heads.q, rows)
    assert q is not None
    return dataclasses.replace(heads, q=q, q2=_at(heads.q2, rows), lam=_at(heads.lam, rows))


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return (q.float() @ repeat_heads(k, q.shape[1]).float().mT) * q.shape[-1] ** -0.5


@contextlib.contextmanager
def _foreign(
    model: PreTrainedModel, rows: Tensor, layers: list[LayerMaps], scores: bool, outputs: bool
) -> Iterator[None]:
    """Listen at transformers' attention interface."""

    def listen(call: AttentionCall) -> None:
        A = call.maps(rows)
        kept = LayerMaps(A, A)
        if scores:
            kept.scores = [call.scores(rows)]
        if outputs:
            kept.outputs = call.out.float()
        layers.append(kept)

    with attention_hook(model, listen):
        yield
