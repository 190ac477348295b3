"""Attention maps of any causal model, layer by layer, at chosen rows.

Three lines show them:

    from antiphase.analysis import capture
    maps = capture(model, ids, rows="all")
    maps.layers[0].difference  # [B, h, T, T]

Only the chosen rows are materialised, so contexts of thousands of tokens fit; the model itself runs
on its own fast kernels.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

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
    """One layer's attention maps at n rows, each [B, h, n, T] in fp32.

    Attributes:
        signal: the signal map A1; of a layer with one map per head, that map.
        difference: the map that is applied to V, A1 - lam A2.
        noise: the noise map A2; None with one map per head.
        lam: [B, h, n, 1]; None with one map per head.
        integral: DINT's mean of the signal map over the rows so far; None in all others.
        scores: softmax logits of each map, -inf at masked positions; with `scores=True`, and none
            of a mechanism without softmax.
        outputs: [B, T, h, dv], what each head passes to W_O; with `outputs=True`.
        values: [B, h, T, dv], what the maps are applied to; with `outputs=True`, of our models.
    """

    signal: Tensor
    difference: Tensor
    noise: Tensor | None = None
    lam: Tensor | None = None
    integral: Tensor | None = None
    scores: list[Tensor] = field(default_factory=list)
    outputs: Tensor | None = None
    values: Tensor | None = None


@dataclass
class CapturedMaps:
    """What `capture` returns.

    Attributes:
        layers: the maps of each layer.
        rows: [B, n], the rows that were captured.
        logits: [B, n, vocabulary size], the model's logits at those rows.
        hidden: hidden states [B, T, D] before the first layer and after each, as transformers gives
            them: the last is the output of the final norm; with `hidden=True`.
    """

    layers: list[LayerMaps]
    rows: Tensor
    logits: Tensor
    hidden: tuple[Tensor, ...] = ()


@torch.no_grad()
def capture(
    model: PreTrainedModel,
    ids: Tensor,
    rows: Tensor | Literal["all"] | None = None,
    *,
    hidden: bool = False,
    scores: bool = False,
    outputs: bool = False,
) -> CapturedMaps:
    """Run a model once and return the attention maps of every layer.

    Args:
        model: one of our models, transformers' DiffLlama (converted to our form first), or any
            Hugging Face causal model that uses transformers' attention interface.
        ids: token ids, [B, T].
        rows: query positions, [B, n]; "all" for the complete maps; default: the last position.
        hidden: also keep the hidden states.
        scores: also keep the attention logits.
        outputs: also keep the output of each head, and its values.

    Returns:
        The maps at those rows, with the model's logits there.

    Raises:
        ValueError: rows outside the sequences, or a model whose attention cannot be observed, or
            that has no attention maps.
    """
    if type(model).__name__ == "DiffLlamaForCausalLM":
        model = from_diffllama(model)
    if isinstance(model, AntiphaseForCausalLM) and not model.model.mechanism.has_maps:
        raise ValueError(
            f"capture: {model.model.mechanism.name} has no attention maps; give a model with "
            "another mechanism"
        )
    rows = _checked_rows(rows, ids).to(model.device)
    recording = _record_ours if isinstance(model, AntiphaseForCausalLM) else _record_foreign
    training = model.training
    model.eval()
    layers: list[LayerMaps] = []
    # logits at all positions might not fit into memory: keep those of the rows only
    wanted, index = rows.unique(return_inverse=True)
    keep = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        keep = {"logits_to_keep": wanted}
    try:
        with recording(model, rows, layers, scores, outputs):
            out = model(
                input_ids=ids.to(model.device), use_cache=False, output_hidden_states=hidden, **keep
            )
    finally:
        model.train(training)
    if not layers:
        raise ValueError(
            f"{type(model).__name__}: does not use transformers' attention interface, so its maps "
            "cannot be captured"
        )
    place = index if keep else rows
    logits = out.logits.gather(1, place[..., None].expand(-1, -1, out.logits.shape[-1]))
    return CapturedMaps(layers, rows, logits.float(), out.hidden_states if hidden else ())


def _checked_rows(rows: Tensor | Literal["all"] | None, ids: Tensor) -> Tensor:
    B, T = ids.shape
    if rows is None:
        return torch.full((B, 1), T - 1)
    if isinstance(rows, str):
        if rows != "all":
            raise ValueError(f'rows: got {rows!r}, expected a tensor [B, n], "all" or None')
        return torch.arange(T).expand(B, -1)
    if rows.shape[0] != B or rows.min() < 0 or rows.max() >= T:
        raise ValueError(
            f"rows: got shape {tuple(rows.shape)} up to {int(rows.max())}, expected [B, n] = "
            f"[{B}, n] below {T}"
        )
    return rows


def _visible(rows: Tensor, T: int, layer: Attention) -> Tensor:
    """Return which keys each row can attend to: causal, within the layer's window."""
    key, row = torch.arange(T, device=rows.device), rows[:, None, :, None]
    if layer.window is None:
        return key <= row  # [B, 1, n, T]
    return (key <= row) & ((key > row - layer.window) | (key < layer.keep_first))


def _at(t: Tensor | None, rows: Tensor) -> Tensor | None:
    """Return t [B, h, T, width] at those rows; what does not depend on the row is unchanged."""
    return t if t is None or t.dim() < 4 or t.shape[2] == 1 else _rows_of(t, rows)


def _rows_of(t: Tensor, rows: Tensor) -> Tensor:
    """Return t [B, h, T, width] at the rows [B, n]."""
    index = rows[:, None, :, None].expand(-1, t.shape[1], -1, t.shape[3])
    return t.gather(2, index)


@contextlib.contextmanager
def _record_ours(
    model: AntiphaseForCausalLM,
    rows: Tensor,
    layers: list[LayerMaps],
    scores: bool,
    outputs: bool,
) -> Iterator[None]:
    """Project once more before each layer's own forward pass, and keep the maps at the rows."""

    def record(layer: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        complete = _project(layer, args[0], kwargs)
        heads = _at_rows(complete, rows)
        visible = _visible(rows, heads.k.shape[2], layer)
        if layer.row_by_row:
            found = layer.maps(heads, layer.masking(causal=False, mask=visible))
        else:  # rows depend on the queries before them
            every = layer.maps(complete, layer.masking(causal=True))
            found = {name: _rows_of(A, rows) for name, A in every.items()}
        names = ("signal", "difference", "noise", "lam", "integral")
        maps: dict[str, Any] = {name: found[name].float() for name in names if name in found}
        kept = LayerMaps(**maps)
        if outputs:
            kept.values = repeat_heads(complete.v, kept.signal.shape[1]).float()
        if scores and layer.has_softmax:
            pairs = [(heads.q, heads.k), (heads.q2, heads.k2)]
            kept.scores = [
                attention_logits(q, k, layer.softcap).masked_fill(~visible, -torch.inf)
                for q, k in pairs
                if q is not None and k is not None and k.dim() == 4
            ]
        layers.append(kept)

    def keep_outputs(layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Tensor]) -> None:
            h = layers[layer].signal.shape[1]
            layers[layer].outputs = args[0].unflatten(-1, (h, -1)).float()

        return hook

    hooks = [
        layer.register_forward_pre_hook(record, with_kwargs=True)
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
    """Return queries, keys and values of every layer, and the residual stream.

    Args:
        model: one of our models.
        ids: token ids, [B, T].

    Returns:
        The heads of each layer, and the hidden states [B, T, D] before each layer and at the end.
    """
    found: list[Heads] = []

    def record(layer: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.append(_project(layer, args[0], kwargs))

    hooks = [
        layer.register_forward_pre_hook(record, with_kwargs=True)
        for layer in model.model.attention_layers
    ]
    try:
        out = model(input_ids=ids, use_cache=False, output_hidden_states=True)
    finally:
        for hook in hooks:
            hook.remove()
    return found, out.hidden_states


def _project(layer: Attention, x: Tensor, kwargs: dict[str, Any]) -> Heads:
    """Return a layer's heads from the arguments of its forward pass."""
    return layer.project(Inputs(x, x, kwargs["rotary"], kwargs["rotary"], None))


def _at_rows(heads: Heads, rows: Tensor) -> Heads:
    """Return heads with the queries of those rows [B, n] only; keys and values stay complete."""
    q = _at(heads.q, rows)
    assert q is not None
    return dataclasses.replace(heads, q=q, q2=_at(heads.q2, rows), lam=_at(heads.lam, rows))


def attention_logits(q: Tensor, k: Tensor, softcap: float | None) -> Tensor:
    """Return the softmax logits of every row and key [B, h, Tq, Tk], without a mask."""
    scores = (q.float() @ repeat_heads(k, q.shape[1]).float().mT) * q.shape[-1] ** -0.5
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


@contextlib.contextmanager
def _record_foreign(
    model: PreTrainedModel, rows: Tensor, layers: list[LayerMaps], scores: bool, outputs: bool
) -> Iterator[None]:
    """Keep the maps that pass through transformers' attention interface."""

    def record(call: AttentionCall) -> None:
        A = call.maps(rows)
        kept = LayerMaps(A, A)
        if scores:
            kept.scores = [call.scores(rows)]
        if outputs:
            kept.outputs = call.out.float()
        layers.append(kept)

    with attention_hook(model, record):
        yield
