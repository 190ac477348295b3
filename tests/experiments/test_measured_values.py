"""Values kept in the folder of a run: names of measures, and what is measured again."""

from functools import partial

import numpy as np
import pytest
import torch

from antiphase.experiments import model_measurements
from antiphase.experiments.conditions import STRESS
from antiphase.experiments.measured_values import MEASURED, measure_name, measured_values
from antiphase.experiments.model_measurements import (
    Answers,
    accuracy,
    calibrated_loss,
    in_retrieval_heads,
)
from antiphase.experiments.text_measurements import outlier


def test_names_are_those_of_functions_and_their_options():
    assert measure_name(accuracy) == "antiphase.experiments.model_measurements.accuracy"
    name = measure_name(partial(outlier, which="top-1", of="logits"))
    assert name == measure_name(partial(outlier, of="logits", which="top-1"))
    assert name.endswith(".outlier(of='logits', which='top-1')")
    assert repr(STRESS) in measure_name(partial(accuracy, condition=STRESS))


@pytest.mark.parametrize(
    "measure",
    [
        lambda model: 1.0,
        partial(lambda model, of: 1.0, of="logits"),
        partial(outlier, "a model"),
        partial(in_retrieval_heads, metric=print),
    ],
    ids=["lambda", "partial of a lambda", "arguments by place", "a function as option"],
)
def test_what_has_no_lasting_name_is_not_kept(measure):
    assert measure_name(measure) is None


def test_values_are_measured_once_and_equal_when_read(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return np.array([1 / 3, np.nan])

    first = measured_values(tmp_path, "a", compute)
    again = measured_values(tmp_path, "a", compute)
    assert len(calls) == 1
    np.testing.assert_array_equal(first, again)
    measured_values(tmp_path, "b", compute)
    assert len(calls) == 2
    (tmp_path / MEASURED).write_text("{")  # damaged: measured again
    np.testing.assert_array_equal(measured_values(tmp_path, "a", compute), first)


def test_the_calibrated_loss_does_not_depend_on_how_certain_a_model_is(monkeypatch):
    torch.manual_seed(0)
    logits, target = torch.randn(4000, 8), torch.randint(8, (4000,))
    logits[torch.arange(2000), target[:2000]] += 4  # half of the answers are mostly right

    def loss(certainty):
        given = Answers(np.empty(0), np.empty(0), certainty * logits, target)
        monkeypatch.setattr(model_measurements, "answers", lambda *args: given)
        return calibrated_loss(object()).mean()

    def plain(certainty):
        return torch.nn.functional.cross_entropy(certainty * logits, target).item()

    assert plain(2) > 1.2 * plain(1)
    assert loss(2) == pytest.approx(loss(1), rel=1e-3) == loss(0.5)
    assert loss(1) <= plain(1)
