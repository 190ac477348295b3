"""Test 21: how the loss of each mechanism on text depends on the start.

The recipes of the ladder start W_Q and W_K at 0.02, scale W_O down and the embeddings up. Beside
that stands the published start: N(0, 0.02) everywhere, head-norm gains of 1.
"""

from antiphase.experiments.arms import STANDARD, V1, V2, Arm
from antiphase.experiments.e02_fixed_lambda import learned_lambda
from antiphase.experiments.e20_ladder import LOSS, loss_table
from antiphase.experiments.experiment import Experiment, Measurement, bar_chart
from antiphase.experiments.text_measurements import held_out_loss
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Effect

ARMS = (STANDARD, V1, V2)
STARTS = {"published start": {"initialisation": "published", "scale_embedding": False}}


def started(arm: Arm, start: str) -> Arm:
    """Return an arm with another start, one of STARTS."""
    return Arm(f"{arm.name}, {start}", arm.attention, changes={"model": STARTS[start]})


class StartTest(Experiment):
    """The loss under other starts minus that under the recipe's, and mechanisms within a start."""

    version = 2
    by_model = True
    arms = (*ARMS, *(started(arm, start) for start in STARTS for arm in ARMS))
    predictions = ()

    def measure(self, models: TrainedModels) -> Measurement:
        """Measure the losses of all starts."""
        effects = {}
        for start in STARTS:
            standard = started(STANDARD, start)
            for arm in ARMS:
                other = started(arm, start)
                pairs = [(other, arm), *([(standard, other)] if arm != STANDARD else [])]
                for one, versus in pairs:
                    key = Effect(LOSS, one.name, versus=versus.name)
                    effects[key] = models.gain(one, versus, held_out_loss)
        losses = {arm.name: models.values(arm, held_out_loss) for arm in self.arms}
        chart = bar_chart("Held-out loss", "nats per token", {"": losses})
        differential = [arm for arm in self.arms if arm.attention == V1.attention]
        tables = [loss_table(models, self.arms), learned_lambda(models, *differential)]
        return Measurement(effects, tables, [chart])
