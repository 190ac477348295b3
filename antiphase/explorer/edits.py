"""Edits of noise maps, applied inside a model's forward pass: A1 - lam A2 becomes A1 - f lam E(A2).

f scales lam, of one layer or of all. E changes the noise map of single heads: none, that of another
head of the layer, or its truncation to a rank.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from antiphase.analysis.metrics import flow
from antiphase.models import AntiphaseForCausalLM

Kind = Literal["off", "head", "rank"]
MAX_FACTOR = 2.0
MAX_EDITS = 64


@dataclass(frozen=True)
class HeadEdit:
    """The edit of one head's noise map.

    Attributes:
        layer: of the head.
        head: its number in the layer.
        kind: "off" for no noise, "head" for that of another head, "rank" for a truncation.
        value: the other head, or the rank; 0 with "off".
    """

    layer: int
    head: int
    kind: Kind
    value: int = 0

    def __str__(self) -> str:
        """Return the edit as the address bar has it."""
        value = "" if self.kind == "off" else f":{self.value}"
        return f"{self.layer}.{self.head}:{self.kind}{value}"


@dataclass(frozen=True)
class Edits:
    """All edits of a model.

    Attributes:
        factors: (layer, f) for single layers, or one pair (None, f) for all.
        heads: edits of single heads, at most one of each.
    """

    factors: tuple[tuple[int | None, float], ...] = ()
    heads: tuple[HeadEdit, ...] = ()

    def __bool__(self) -> bool:
        return any(f != 1.0 for _, f in self.factors) or bool(self.heads)

    def factor(self, layer: int) -> float:
        """Return f of a layer."""
        return next((f for place, f in self.factors if place in (None, layer)), 1.0)

    def of_layer(self, layer: int) -> list[HeadEdit]:
        """Return the edits of the heads of a layer."""
        return [edit for edit in self.heads if edit.layer == layer]

    def noise(self, A2: Tensor, layer: int) -> Tensor:
        """Return E(A2), the edited noise maps [B, h, T, T] of a layer, without the factor."""
        mine = self.of_layer(layer)
        edited = A2.clone() if mine else A2
        for edit in mine:
            at = slice(edit.head, edit.head + 1)
            if edit.kind == "off":
                edited[:, at] = flow.knocked_out(A2[:, at])
            elif edit.kind == "head":
                edited[:, at] = A2[:, edit.value : edit.value + 1]
            else:
                edited[:, at] = flow.of_rank(edit.value)(A2[:, at])
        return edited

    def check(self, heads: list[int], length: int) -> None:
        """Raise for edits of layers, heads or ranks that a model does not have.

        Args:
            heads: number of heads with a noise map, per layer; 0 without.
            length: of the sequence, the largest rank.

        Raises:
            ValueError: says what there is.
        """
        for layer, _ in self.factors:
            if layer is not None:
                _check_layer("lam", layer, heads)
        for edit in self.heads:
            _check_layer(f"edits: {edit}", edit.layer, heads)
            h = heads[edit.layer]
            others = (edit.head, edit.value) if edit.kind == "head" else (edit.head,)
            if max(others) >= h:
                raise ValueError(f"edits: {edit}: layer {edit.layer} has the heads 0 to {h - 1}")
            if edit.kind == "rank" and not 1 <= edit.value <= length:
                raise ValueError(f"edits: {edit}: expected a rank from 1 to {length}")


def _check_layer(what: str, layer: int, heads: list[int]) -> None:
    if layer >= len(heads):
        raise ValueError(f"{what}: there are the layers 0 to {len(heads) - 1}, got {layer}")
    if not heads[layer]:
        raise ValueError(f"{what}: layer {layer} has one map per head, no noise map to edit")


@contextlib.contextmanager
def applied(edits: Edits, model: AntiphaseForCausalLM, noise_heads: list[int]) -> Iterator[None]:
    """Run a model with its noise maps edited, while the context is open.

    Args:
        edits: to apply; layers without any run on their own kernel.
        model: one of our models, with two maps per head in the edited layers.
        noise_heads: number of heads with a noise map, per layer; a factor for all leaves layers
            without any as they are.
    """
    with contextlib.ExitStack() as stack:
        for layer, heads in enumerate(noise_heads):
            f = edits.factor(layer)
            if heads and (f != 1.0 or edits.of_layer(layer)):

                def edit(A2: Tensor, layer: int = layer, f: float = f) -> Tensor:
                    return f * edits.noise(A2, layer)

                stack.enter_context(flow.edited(model, edit, layer, None))
        yield


def parse_factors(name: str, text: str) -> tuple[tuple[int | None, float], ...]:
    """Return the factors of an address: "1.5" for all layers, or "0:1.5,1:0".

    Raises:
        ValueError: something else was given.
    """
    found: dict[int | None, float] = {}
    for part in text.split(",") if text else []:
        layer, colon, factor = part.rpartition(":")
        try:
            f = float(factor)
        except ValueError:
            f = -1.0
        if not 0 <= f <= MAX_FACTOR or (colon and not _is_small(layer)):
            raise ValueError(
                f"{name}: got {part!r}, expected a factor of lam from 0 to {MAX_FACTOR:g}, or "
                "LAYER:FACTOR"
            )
        found[int(layer) if colon else None] = f
    if None in found and len(found) > 1:
        raise ValueError(f"{name}: got {text!r}, expected one factor for all layers, or by layer")
    return tuple(found.items())


def parse_edits(name: str, text: str) -> tuple[HeadEdit, ...]:
    """Return the edits of an address: "1.2:off,1.0:head:3,0.1:rank:4".

    Raises:
        ValueError: something else was given, or two edits of one head.
    """
    found: dict[tuple[int, int], HeadEdit] = {}
    for part in text.split(",") if text else []:
        place, _, rest = part.partition(":")
        kind, _, value = rest.partition(":")
        layer, _, head = place.partition(".")
        numbers = (layer, head) if kind == "off" else (layer, head, value)
        wrong = kind not in get_args(Kind) or (kind == "off" and value)
        if wrong or not all(_is_small(number) for number in numbers):
            raise ValueError(
                f"{name}: got {part!r}, expected LAYER.HEAD:off, LAYER.HEAD:head:OTHER or "
                "LAYER.HEAD:rank:R"
            )
        edit = HeadEdit(int(layer), int(head), kind, int(value or 0))  # type: ignore[arg-type]
        if (edit.layer, edit.head) in found:
            raise ValueError(f"{name}: has two edits of layer {layer}, head {head}; give one")
        found[edit.layer, edit.head] = edit
    if len(found) > MAX_EDITS:
        raise ValueError(f"{name}: has {len(found)} edits, at most {MAX_EDITS} are allowed")
    return tuple(found.values())


def _is_small(number: str) -> bool:
    return number.isascii() and number.isdigit() and len(number) <= 4
