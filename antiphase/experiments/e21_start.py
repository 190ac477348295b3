"""Test 21: what the published initialisation costs each mechanism, on text."""

from antiphase.experiments.arms import STANDARD, V1, V2, Arm
from antiphase.experiments.e20_ladder import LOSS, loss_table
from antiphase.experiments.experiment import Experiment, Measurement, bar_chart
from antiphase.experiments.text_measurements import held_out_loss
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Effect

PUBLISHED = {
    arm.name: Arm(
        f"{arm.name}, published start",
        arm.attention,
        changes={"model": {"initialisation": "published"}},
    )
    for arm in (STANDARD, V1, V2)
}


class StartTest(Experiment):
    """The loss under the published start, minus that under the default one."""

    arms = (STANDARD, V1, V2, *PUBLISHED.values())
    predictions = ()

    def measure(self, models: TrainedModels) -> Measurement:
        """Measure the losses of both starts."""
        effects = {
            Effect(LOSS, published.name, versus=arm.name): models.gain(
                published, arm, held_out_loss
            )
            for arm, published in zip((STANDARD, V1, V2), PUBLISHED.values(), strict=True)
        }
        effects |= {
            Effect(LOSS, PUBLISHED[STANDARD.name].name, versus=PUBLISHED[arm.name].name): (
                models.gain(PUBLISHED[STANDARD.name], PUBLISHED[arm.name], held_out_loss)
            )
            for arm in (V1, V2)
        }
        losses = {arm.name: models.values(arm, held_out_loss) for arm in self.arms}
        chart = bar_chart("Held-out loss", "nats per token", {"": losses})
        return Measurement(effects, [loss_table(models, self.arms)], [chart])
