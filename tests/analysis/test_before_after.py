"""The size of DEX's operation against a model in which it is planted."""

import math

import numpy as np
import pytest
import torch

from antiphase.analysis.before_after import operation_sizes
from antiphase.analysis.before_after_table import operation_line
from antiphase.pretrained import DexConfig, fold, unchain
from antiphase.pretrained.dex import operators
from tests.pretrained.small import made, sequences

HELD_OUT = [{"input_ids": ids} for ids in sequences(3)]


def planted(heads, *per_layer):
    """Return a model with DEX whose layers have lam and W_D = factor x a rotation."""
    unchained = unchain(made("llama"), DexConfig(heads=heads, anneal=1))
    unchained.step = 1
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(1))).Q
    with torch.no_grad():
        layers = operators(unchained).values()
        for operator, (lam, factor) in zip(layers, per_layer, strict=True):
            operator.lam.learn.fill_(lam)
            operator.W_D.copy_(factor * rotation)
    return unchained


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        ("all", (0.3 * 0.5 + 0.4 * 2.0) / 2),
        ([[0], [1, 3]], (0.3 * 0.5 + 0.4 * 2.0) / 2),
        ([[2], []], 0.3 * 0.5),  # a layer without selected heads does not count
        ([[], []], 0.0),
    ],
)
def test_a_planted_operation_has_its_known_size(heads, expected):
    """A rotation keeps the norm, so ||lam c R O|| / ||O|| is |lam| c, whatever O is."""
    model = planted(heads, (-0.3, 0.5), (0.4, 2.0))
    assert operation_sizes(model, HELD_OUT) == pytest.approx([expected] * 3, rel=1e-5)


def test_only_the_selected_heads_count():
    """With a W_D that no rotation is, the size depends on which heads are measured."""
    model = unchain(made("llama"), DexConfig(heads=[[1], []], anneal=1))
    model.step = 1
    operator = next(iter(operators(model).values()))
    with torch.no_grad():
        operator.lam.learn.fill_(0.5)
        operator.W_D.zero_()[0, 0] = 1.0
    seen = []
    hook = operator.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    found = operation_sizes(model, HELD_OUT)
    hook.remove()
    head = [o.unflatten(-1, (4, 8))[..., 1, :] for o in seen]
    expected = [float(0.5 * o[..., 0].norm() / o.norm()) for o in head]
    assert found == pytest.approx(expected, rel=1e-5)
    assert np.ptp(found) > 0


def test_an_operation_at_lam_0_has_no_size():
    assert operation_sizes(planted("all", (0, 1.0), (0, 1.0)), HELD_OUT).tolist() == [0, 0, 0]


def test_measuring_leaves_the_model_as_it_was():
    model, ids = planted("all", (0.3, 0.5), (0.4, 2.0)), sequences()
    with torch.no_grad():
        before = model(ids).logits
        operation_sizes(model, HELD_OUT)
        assert torch.equal(model(ids).logits, before)
    assert not any(operator._forward_pre_hooks for operator in operators(model).values())


def test_a_folded_model_has_no_operation_to_measure():
    with pytest.raises(ValueError, match="LlamaForCausalLM: has no DEX inside; measure it before"):
        operation_sizes(fold(planted("all", (0.3, 0.5), (0.4, 2.0))), HELD_OUT)


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ([], None),
        ([0.0, 0.0], "operation: 0% of the heads' output; below 5%: it never switched on"),
        ([0.002, 0.005], "operation: 0.35% of the heads' output; below 5%: it never switched on"),
        ([0.25, 0.5], "operation: 37.5% of the heads' output"),
        ([math.sqrt(2)], "operation: 141% of the heads' output"),
    ],
)
def test_the_line_says_whether_the_operation_acts(sizes, line):
    found = operation_line({"operation": sizes})
    assert (found and found.removesuffix(", so the change is not due to it")) == line
