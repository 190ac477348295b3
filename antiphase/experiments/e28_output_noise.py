"""Test 28: follow-up on sparsity and cancelling: entropy, and noise in the output of heads.

Two faults of test 5 led here. Its primary prediction of sparsity, about the Gini index, had no room
(standard attention has 0.98 of at most 0.995); entropy has. And its CMRR counts magnitudes of
weights: a difference with weights of both signs could still cancel in the sum that they weigh.
"""

from torch import Tensor

from antiphase.analysis.capture import LayerMaps
from antiphase.analysis.ground_truth import GroundTruth
from antiphase.analysis.metrics.cancellation import from_another_example, output_rejection
from antiphase.experiments.arms import STANDARD, V1, V2
from antiphase.experiments.conditions import SYNTHETIC_CONDITIONS, SYNTHETIC_STRESS
from antiphase.experiments.contests import learned_effects, noise_effect
from antiphase.experiments.e05_sparsity import ENTROPY, sparsity_metric
from antiphase.experiments.experiment import (
    Experiment,
    Measurement,
    Table,
    bar_chart,
    interval_row,
)
from antiphase.experiments.model_measurements import HeadMetric, Numbers, in_retrieval_heads
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, noise, room

ONLY_V1 = (learned(V1.name), noise(SYNTHETIC_STRESS.name))
BOTH = (learned(STANDARD.name), *ONLY_V1)
BITS, DB = 0.05, 1.0  # sizes that count: entropy is a fraction of its maximum
REJECTION = Effect("rejection in the output of heads, dB", V1.name)
OVER_NULL = Effect(REJECTION.metric, V1.name, versus="its null (A2 of another example)")
STANDARD_ENTROPY = Effect(ENTROPY.metric, STANDARD.name)


def entropy(model: TrainedModel) -> Numbers:
    """Return the entropy of the rows that predict answers, in retrieval heads, by example."""
    return sparsity_metric(model, "entropy", SYNTHETIC_STRESS)


def rejection_in_output(model: TrainedModel) -> Numbers:
    """Return how many dB the subtraction lowers what I adds to a head more than what R adds."""
    metric: HeadMetric = lambda layer, truth: _rejection(layer, truth, layer.noise)  # noqa: E731
    return in_retrieval_heads(model, metric, SYNTHETIC_STRESS)


def rejection_of_null(model: TrainedModel) -> Numbers:
    """Return the same where A2 of another example is subtracted."""

    def metric(layer: LayerMaps, truth: GroundTruth) -> Tensor:
        assert layer.noise is not None
        return _rejection(layer, truth, from_another_example(layer.noise))

    return in_retrieval_heads(model, metric, SYNTHETIC_STRESS)


def _rejection(layer: LayerMaps, truth: GroundTruth, noise: Tensor | None) -> Tensor:
    assert noise is not None
    assert layer.lam is not None
    assert layer.values is not None
    return output_rejection(layer.signal, layer.signal - layer.lam * noise, layer.values, truth)


class OutputNoiseTest(Experiment):
    """Entropy of the maps, and what irrelevant tokens add to the output of heads."""

    version = 2
    conditions = SYNTHETIC_CONDITIONS
    arms = (STANDARD, V1, V2)
    predictions = (
        Prediction(
            "sparsity",
            ENTROPY,
            "more",
            BITS,
            "sparser rows",
            (*BOTH, room(STANDARD_ENTROPY, BITS)),
            primary=True,
        ),
        Prediction(
            "cancelling",
            REJECTION,
            "more",
            DB,
            "what both maps take from irrelevant tokens cancels in the sum over V",
            ONLY_V1,
        ),
        Prediction(
            "cancelling",
            OVER_NULL,
            "more",
            DB,
            "another example's noise cannot cancel this one's; any even map lowers the sum",
            ONLY_V1,
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        """Measure maps and outputs of the retrieval heads."""
        effects = {
            ENTROPY: models.gain(STANDARD, V1, entropy),
            STANDARD_ENTROPY: models.values(STANDARD, entropy),
            REJECTION: models.values(V1, rejection_in_output),
        }
        null = models.values(V1, rejection_of_null)
        effects[OVER_NULL] = [a - b for a, b in zip(effects[REJECTION], null, strict=True)]
        effects |= learned_effects(models, self.arms[:2]) | noise_effect(
            models, STANDARD, SYNTHETIC_STRESS
        )
        measures = {"own A2": rejection_in_output, "A2 of another example": rejection_of_null}
        with_two_maps = (V1, V2)  # foreign noise is A2 of another example already
        found = {
            name: {arm.name: models.values(arm, measure) for arm in with_two_maps}
            for name, measure in measures.items()
        }
        rows = [
            interval_row(arm.name, *(values[arm.name] for values in found.values()))
            for arm in with_two_maps
        ]
        title = f"Rejection in the output of retrieval heads, {SYNTHETIC_STRESS.name}"
        note = (
            "Above 0, the subtraction lowers the norm of what irrelevant tokens add to a head's "
            "output more than that of what the answer adds."
        )
        table = Table(title, ["", *(f"dB, {name}" for name in found)], rows, note)
        return Measurement(effects, [table], [bar_chart(title, "dB", found)])
