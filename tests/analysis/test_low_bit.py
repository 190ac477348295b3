"""Attention logits in few bits."""

import pytest
import torch

from antiphase.analysis.metrics.low_bit import absmax_quantised, low_bit_logits
from antiphase.models import AntiphaseForCausalLM, preset


@pytest.fixture(params=["standard", "diff_v1", "diff_v2", "gated"])
def model(request):
    torch.manual_seed(0)
    return AntiphaseForCausalLM(preset("nano", request.param)).eval()


@torch.no_grad()
def test_all_bits_change_nothing_and_few_do(model):
    ids = torch.randint(0, 128, (2, 40))
    expected = model(ids).logits
    errors = []
    for bits in (None, 12, 8, 4, 2):
        with low_bit_logits(model, bits):
            errors.append(float((model(ids).logits - expected).abs().max()))
    assert errors[0] < 1e-5
    assert errors[0] < errors[1] < errors[2] < errors[3] < errors[4]
    torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=0)  # it is undone


def test_levels():
    scores = torch.linspace(-3, 3, 601).reshape(1, 1, 1, -1).clone()
    scores[..., 5] = -torch.inf
    found = absmax_quantised(scores, 3)
    assert found[0, 0, 0].unique().tolist() == pytest.approx([-torch.inf, -3, -2, -1, 0, 1, 2, 3])
    seen = scores > -torch.inf
    assert float((found - scores)[seen].abs().max()) <= 0.5 + 1e-6
    assert absmax_quantised(torch.zeros(1, 1, 2, 2), 4).eq(0).all()


def test_other_mechanisms_are_refused():
    model = AntiphaseForCausalLM(preset("nano", "linear"))
    with pytest.raises(ValueError, match="got linear, expected standard"), low_bit_logits(model, 4):
        pass
    model = AntiphaseForCausalLM(preset("nano", "standard", sliding_window=8))
    with pytest.raises(ValueError, match="window"), low_bit_logits(model, 4):
        pass
