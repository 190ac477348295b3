"""Test 22: how V1 fares with few and with many heads, on text."""

from antiphase.experiments.arms import STANDARD, V1, Arm
from antiphase.experiments.e20_ladder import loss_gain, loss_table
from antiphase.experiments.experiment import Experiment, Measurement, bar_chart
from antiphase.experiments.text_measurements import held_out_loss
from antiphase.experiments.trained_models import TrainedModels

# A head of V1 has two maps; beside it stands standard attention with twice as many heads of the
# same width. The config counts the heads of standard attention.
PAIRS = {
    2: (Arm("V1, 2 heads", "diff_v1", changes={"model": {"num_attention_heads": 4}}),
        Arm("standard, 4 heads", "standard", changes={"model": {"num_attention_heads": 4}})),
    4: (V1, STANDARD),
    8: (Arm("V1, 8 heads", "diff_v1", changes={"model": {"num_attention_heads": 16}}),
        Arm("standard, 16 heads", "standard", changes={"model": {"num_attention_heads": 16}})),
}  # fmt: skip


class HeadCountTest(Experiment):
    """The loss of V1 with 2, 4 and 8 heads against standard attention with 4, 8 and 16."""

    by_model = True
    arms = tuple(arm for pair in PAIRS.values() for arm in pair)
    predictions = ()

    def measure(self, models: TrainedModels) -> Measurement:
        """Measure the losses of each pair."""
        effects = {
            loss_gain(v1, standard): models.gain(standard, v1, held_out_loss)
            for v1, standard in PAIRS.values()
        }
        saved = {
            f"{heads} V1 heads": models.gain(standard, v1, held_out_loss)
            for heads, (v1, standard) in PAIRS.items()
        }
        chart = bar_chart("Loss of standard minus that of V1", "nats per token", {"": saved})
        return Measurement(effects, [loss_table(models, self.arms)], [chart])
