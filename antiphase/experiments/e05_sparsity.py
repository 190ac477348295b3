"""Test 5: whether differential maps are sparser than standard ones, or leave the simplex."""

from functools import partial

from torch import Tensor

from antiphase.analysis.capture import LayerMaps
from antiphase.analysis.ground_truth import GroundTruth
from antiphase.analysis.metrics import sparsity
from antiphase.analysis.metrics.cancellation import from_another_example, rejection
from antiphase.experiments.arms import STANDARD, V1, V2
from antiphase.experiments.conditions import STRESS, Condition
from antiphase.experiments.contests import learned_effects, noise_effect
from antiphase.experiments.experiment import (
    Experiment,
    Measurement,
    Table,
    bar_chart,
    interval_row,
)
from antiphase.experiments.model_measurements import (
    HeadMetric,
    Numbers,
    in_retrieval_heads,
    mass,
)
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, noise

METRICS = {
    "entropy": sparsity.entropy,
    "Gini": sparsity.gini,
    "Hoyer": sparsity.hoyer,
    "fraction above 1/T": sparsity.fraction_above_uniform,
    "negative mass": sparsity.negative_mass,
    "max weight": sparsity.max_weight,
    "fraction outside [0, 1]": sparsity.fraction_outside_simplex,
}
GINI = Effect("Gini", V1.name, versus=STANDARD.name)
ENTROPY = Effect("entropy", STANDARD.name, versus=V1.name)
NEGATIVE_MASS = {arm.name: Effect("negative mass", arm.name) for arm in (V1, V2)}
CMRR = Effect("common-mode rejection, dB", V1.name)
OVER_NULL = Effect(CMRR.metric, V1.name, versus="its null (A2 of another example)")
BOTH = (learned(V1.name), learned(STANDARD.name), noise(STRESS.name))
ONLY_V1 = (learned(V1.name), noise(STRESS.name))


def sparsity_metric(model: TrainedModel, name: str, condition: Condition = STRESS) -> Numbers:
    """Return a metric of the maps that are applied to V, in retrieval heads, by example."""
    metric: HeadMetric = lambda layer, truth: METRICS[name](layer.difference, truth.visible)  # noqa: E731
    return in_retrieval_heads(model, metric, condition)


def common_mode_rejection(model: TrainedModel, null: bool = False) -> Numbers:
    """Return how many dB the subtraction lowers noise more than signal, in retrieval heads.

    Args:
        model: with two maps per head.
        null: subtract A2 of another example instead.
    """

    def metric(layer: LayerMaps, truth: GroundTruth) -> Tensor:
        difference = layer.difference
        if null:
            assert layer.noise is not None
            assert layer.lam is not None
            difference = layer.signal - layer.lam * from_another_example(layer.noise)
        return rejection(layer.signal, difference, truth)

    return in_retrieval_heads(model, metric)


def rejection_over_null(model: TrainedModel) -> Numbers:
    """Return how many dB more that is than with A2 of another example."""
    return common_mode_rejection(model) - common_mode_rejection(model, null=True)


class SparsityTest(Experiment):
    """Concentration, sign and noise of the maps that are applied to V.

    That weights are negative follows from the subtraction and predicts nothing; it is reported.
    """

    version = 6
    arms = (STANDARD, V1, V2)
    predictions = (
        Prediction("sparsity", GINI, "more", 0.05, "sparser rows", BOTH, primary=True),
        Prediction("sparsity", ENTROPY, "more", 0.05, "sparser rows", BOTH),
        Prediction(
            "cancelling",
            CMRR,
            "more",
            1.0,
            "subtraction lowers noise more than signal",
            ONLY_V1,
            primary=True,
        ),
        Prediction(
            "cancelling",
            OVER_NULL,
            "more",
            1.0,
            "another example's noise cannot cancel this one's",
            ONLY_V1,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        effects = {
            GINI: models.gain(V1, STANDARD, partial(sparsity_metric, name="Gini")),
            ENTROPY: models.gain(STANDARD, V1, partial(sparsity_metric, name="entropy")),
            CMRR: models.values(V1, common_mode_rejection),
            OVER_NULL: models.values(V1, rejection_over_null),
        }
        effects |= {
            NEGATIVE_MASS[arm.name]: models.values(
                arm, partial(sparsity_metric, name="negative mass")
            )
            for arm in (V1, V2)
        }
        effects |= learned_effects(models, self.arms) | noise_effect(models, STANDARD)
        values = {
            arm.name: {
                name: models.values(arm, partial(sparsity_metric, name=name)) for name in METRICS
            }
            for arm in self.arms
        }
        title = f"Rows of |A| that predict answers, retrieval heads, {STRESS.name}"
        rows = [interval_row(name, *(found[name] for found in values.values())) for name in METRICS]
        kinds = {"R": "relevant", "S": "sink", "I": "irrelevant", "own": "own"}
        rows += [
            interval_row(
                f"mass on {name}",
                *(models.values(arm, partial(mass, kind=kind)) for arm in self.arms),
            )
            for name, kind in kinds.items()
        ]
        table = Table(title, ["", *values], rows)
        return Measurement(effects, [table], [bar_chart(title, "", values)])
