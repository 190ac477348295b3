"""Test 10: fewer hallucinations, or only more caution."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from antiphase.experiments.accuracy_under_stress import CONDITIONS, LONGER_NEAR, as_trained
from antiphase.experiments.arms import Arm, base_recipe
from antiphase.experiments.experiment import (
    Experiment,
    Measurement,
    Table,
    bar_chart,
    interval_row,
)
from antiphase.experiments.model_measurements import answers
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import AS_TRAINED, Effect, Prediction, learned, room

ARMS = {
    name: Arm(f"{name} (unanswerable)", base_recipe(attention, task="unanswerable"))
    for name, attention in (("standard", "standard"), ("V1", "diff_v1"), ("V2", "diff_v2"))
}
REFUSAL_RATE = 0.05  # on answerable questions, the same for all arms
EXAMPLES = 512
HALLUCINATIONS = Effect(
    "answers to unanswerable questions",
    ARMS["standard"].name,
    versus=ARMS["V1"].name,
    condition=f"equal refusal rate, {LONGER_NEAR}",
)
HALLUCINATIONS_LEFT = replace(HALLUCINATIONS, versus=None)


def outcome(
    model: TrainedModel, which: str, equal_refusals: bool, condition: str
) -> NDArray[np.float64]:
    """Return 1 or 0 per question of a kind.

    Args:
        model: trained on the unanswerable task.
        which: `hallucinated` (answers to unanswerable questions), `refused` (refusals of answerable
            ones) or `correct` (correct answers to answerable ones).
        equal_refusals: shift the refusal's logit until the model refuses REFUSAL_RATE of the
            answerable questions, so that caution cannot pass for knowledge.
        condition: one of CONDITIONS.
    """
    found = answers(model, EXAMPLES, **CONDITIONS[condition])
    refusal = model.held_out(1).refusal
    unanswerable = found.target == refusal
    others = found.logits.clone()
    others[:, refusal] = -torch.inf
    margin = found.logits[:, refusal] - others.amax(-1)  # above 0: refuses
    shift = torch.zeros(())
    if equal_refusals:
        shift = torch.quantile(margin[~unanswerable], 1 - REFUSAL_RATE)
    refuses = margin > shift
    correct = others.argmax(-1) == found.target
    outcomes = {
        "hallucinated": ~refuses[unanswerable],
        "refused": refuses[~unanswerable],
        "correct": (correct & ~refuses)[~unanswerable],
    }
    return outcomes[which].double().numpy()


class CautionTest(Experiment):
    """Answerable and unanswerable retrieval, both kinds of error, then at equal refusal rates."""

    version = 4
    amended = (
        "Amended after a first run: on the task as trained no model makes errors, so the "
        "prediction is now about harder sequences, which had not been measured before."
    )
    arms = tuple(ARMS.values())
    predictions = (
        Prediction(
            "cancelling",
            HALLUCINATIONS,
            "more",
            0.02,
            "less noise is mistaken for an answer",
            gates=(
                learned(ARMS["standard"].name),
                learned(ARMS["V1"].name),
                room(HALLUCINATIONS_LEFT, 0.02),
            ),
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        hallucinated = partial(
            outcome, which="hallucinated", equal_refusals=True, condition=LONGER_NEAR
        )
        effects = as_trained(models, self.arms) | {
            HALLUCINATIONS: models.gain(ARMS["standard"], ARMS["V1"], hallucinated),
            HALLUCINATIONS_LEFT: models.values(ARMS["standard"], hallucinated),
        }
        columns = {
            "answers to unanswerable": "hallucinated",
            "refusals of answerable": "refused",
            "correct answers": "correct",
        }
        rows = [
            interval_row(
                f"{name}, {condition}" + (f", refusing {REFUSAL_RATE:.0%}" if equal else ""),
                *(
                    models.values(
                        arm,
                        partial(outcome, which=which, equal_refusals=equal, condition=condition),
                    )
                    for which in columns.values()
                ),
            )
            for condition in (AS_TRAINED, LONGER_NEAR)
            for name, arm in ARMS.items()
            for equal in (False, True)
        ]
        chart = bar_chart(
            f"Answers to unanswerable questions, all refusing {REFUSAL_RATE:.0%} of the answerable",
            "fraction",
            {"": {name: models.values(arm, hallucinated) for name, arm in ARMS.items()}},
        )
        table = Table("Answers and refusals", ["", *columns], rows)
        return Measurement(effects, [table], [chart])
