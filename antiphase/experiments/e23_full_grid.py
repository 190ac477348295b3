"""Test 23: length against noise in full, on three lengths and three levels of noise.

Test 7 found that V1's gain over standard attention grows with noise. So would the gain of any
second map that helps: here the controls are in the grid, too.

The loss is taken at the temperature that suits each model. Without that, settings that answer
equally well differ by more than the size that counts.
"""

from dataclasses import replace

from antiphase.analysis.statistics import difference
from antiphase.experiments.arms import (
    FOREIGN_NOISE,
    SIGNED_MASK,
    STANDARD,
    TOP_16,
    V1,
    V2,
    Arm,
)
from antiphase.experiments.conditions import AS_TRAINED, NEAR, SYNTHETIC_STRESS
from antiphase.experiments.e07_grid import Axes, GridTest, gain_in, mean_of
from antiphase.experiments.experiment import Measurement
from antiphase.experiments.model_measurements import calibrated_loss
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import (
    Effect,
    Gate,
    Kind,
    Prediction,
    learned,
    noise,
    room,
)

SIZE = 0.1  # nats
AXES = Axes((1.0, 1.5, 2.0), tuple(NEAR))
BY_NOISE, BY_LENGTH, OVERALL = AXES.noise_name, AXES.length_name, "mean over cells"
WHAT = "calibrated loss"
GAIN = gain_in(WHAT)


def _prediction(
    reading: str,
    one: Arm,
    other: Arm,
    condition: str,
    kind: Kind,
    because: str,
    gates: tuple[Gate, ...] = (),
    *,
    primary: bool = False,
) -> Prediction:
    """Return a prediction about the gain of an arm, minus that of another if it is not standard.

    The loss of the baseline must leave room in the same combination of cells: a gain cannot grow
    with noise by more than the loss does.
    """
    versus = None if other == STANDARD else other.name
    effect = Effect(GAIN, one.name, versus=versus, condition=condition)
    baseline = other if kind == "more" else STANDARD
    left = Effect(WHAT, baseline.name, condition=condition)
    common = (learned(one.name), learned(other.name), room(left, SIZE))
    return Prediction(reading, effect, kind, SIZE, because, (*common, *gates), primary)


IN_NOISE = noise(SYNTHETIC_STRESS.name)


class FullGridTest(GridTest):
    """Length x noise, 3 x 3: gains of V1, V2 and of the controls."""

    axes = AXES
    what = WHAT
    of_answers = staticmethod(calibrated_loss)
    stress = SYNTHETIC_STRESS
    version = 2
    arms = (STANDARD, V1, V2, TOP_16, SIGNED_MASK, FOREIGN_NOISE)
    conditions = tuple(dict.fromkeys((AS_TRAINED, SYNTHETIC_STRESS, *AXES.cells.values())))
    predictions = (
        _prediction(
            "cancelling",
            V1,
            FOREIGN_NOISE,
            BY_NOISE,
            "more",
            "only noise of the same sequence can be cancelled",
            (IN_NOISE,),
            primary=True,
        ),
        _prediction(
            "cancelling",
            V1,
            STANDARD,
            BY_NOISE,
            "more",
            "the gain grows with noise at fixed length",
            (IN_NOISE,),
        ),
        _prediction(
            "sparsity",
            TOP_16,
            V1,
            BY_LENGTH,
            "no worse",
            "any sparse attention gains as much with length",
            primary=True,
        ),
        _prediction(
            "sparsity",
            V1,
            STANDARD,
            BY_LENGTH,
            "more",
            "the gain grows with length at fixed noise",
        ),
        _prediction(
            "sparsity",
            V1,
            STANDARD,
            BY_NOISE,
            "same",
            "noise as such plays no role",
            (IN_NOISE,),
        ),
        _prediction(
            "unchaining",
            SIGNED_MASK,
            V1,
            OVERALL,
            "no worse",
            "leaving the simplex is enough, whatever the length and the noise",
            primary=True,
        ),
        _prediction(
            "unchaining",
            FOREIGN_NOISE,
            V1,
            OVERALL,
            "no worse",
            "any second map leaves the simplex",
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        found = super().measure(models)
        effects = found.effects
        for arm in self.arms:
            losses = self.losses(models, arm)
            combined = {
                BY_NOISE: self.axes.by_noise(losses),
                BY_LENGTH: self.axes.by_length(losses),
                OVERALL: mean_of([*losses.values()]),
            }
            effects |= {Effect(WHAT, arm.name, condition=c): v for c, v in combined.items()}
        for arm in self.arms[1:]:
            gains = self.gains(models, arm)
            effects[Effect(GAIN, arm.name, condition=OVERALL)] = mean_of([*gains.values()])
        for prediction in self.predictions:
            effect = prediction.effect
            if effect.versus is not None:
                one, other = (
                    replace(effect, arm=a, versus=None) for a in (effect.arm, effect.versus)
                )
                effects[effect] = difference(effects[one], effects[other])
        return found
