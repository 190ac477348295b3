"""Test 11: which mechanisms have no attention sinks, on models of text."""

from antiphase.experiments.arms import GATED, STANDARD, V1, V2, Arm
from antiphase.experiments.e20_ladder import LOSS, MINUS, loss_cells, loss_lead_chart
from antiphase.experiments.experiment import (
    Experiment,
    Figure,
    Measurement,
    Table,
    bar_chart,
    interval_row,
)
from antiphase.experiments.text_measurements import (
    held_out_loss,
    largest_head_mass_on_first,
    mass_on_first,
)
from antiphase.experiments.trained_models import TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, room

OFF_BY_ONE = Arm("off by one", "sink")
SINK_MASS = {arm.name: Effect("mass on S", STANDARD.name, versus=arm.name) for arm in (V1, V2)}
STANDARD_MASS = Effect("mass on S", STANDARD.name)
SIZE = 0.03


class SinksTest(Experiment):
    """Mass on the first token."""

    version = 6
    by_model = True
    arms = (STANDARD, V1, V2, GATED, OFF_BY_ONE)
    predictions = tuple(
        Prediction(
            "unchaining",
            effect,
            "more",
            SIZE,
            "a head that can output zero needs no position to put its mass on",
            gates=(room(STANDARD_MASS, SIZE),),
            primary=name == V1.name,
        )
        for name, effect in SINK_MASS.items()
    )

    def measure(self, models: TrainedModels) -> Measurement:
        """Measure the mass on the first token."""
        effects = {
            SINK_MASS[arm.name]: models.gain(STANDARD, arm, mass_on_first) for arm in (V1, V2)
        }
        effects[STANDARD_MASS] = models.values(STANDARD, mass_on_first)
        for one, other in ((V1, GATED), (V2, GATED), (V1, V2), (V1, OFF_BY_ONE)):
            gap = Effect(LOSS, one.name, versus=other.name)
            effects[gap] = models.gain(one, other, held_out_loss)
        measures = (mass_on_first, largest_head_mass_on_first)
        rows = [
            [
                *interval_row(arm.name, *(models.values(arm, measure) for measure in measures)),
                *loss_cells(models, arm),
            ]
            for arm in self.arms
        ]
        columns = ["", "mass on S", "mass on S, head with the most", LOSS, MINUS]
        masses = {arm.name: models.values(arm, mass_on_first) for arm in self.arms}
        figures: list[Figure] = [
            bar_chart("Mass on the first token (S)", "fraction of |A|", {"": masses}),
            loss_lead_chart(models, self.arms[1:]),
        ]
        return Measurement(effects, [Table("Attention sinks on text", columns, rows)], figures)
