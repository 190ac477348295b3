"""Test 10: fewer hallucinations, or only more caution."""

from dataclasses import replace
from functools import partial

import torch

from antiphase.experiments.arms import STANDARD, V1, V2, on_task
from antiphase.experiments.conditions import AS_TRAINED, UNANSWERABLE_STRESS, Condition
from antiphase.experiments.contests import learned_effects, noise_effect
from antiphase.experiments.experiment import (
    Experiment,
    Measurement,
    Table,
    bar_chart,
    interval_row,
)
from antiphase.experiments.model_measurements import Numbers, answers
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Effect, Prediction, learned, noise, room

UNANSWERABLE = {
    "task": "unanswerable",
    "task_options": {
        "length": 64,
        "keys": 8,
        "values": 16,
        "needles": 4,
        "repeats": 3,
        "queried": 1,
        "noise": 1.0,
    },
    "criterion": None,  # it counts repeated needles, which all have an answer, more than refusals
}
ARMS = on_task("unanswerable", (STANDARD, V1, V2), UNANSWERABLE)
# at twice the length standard attention answers 10% to 20% of the unanswerable questions: no room
STRESS = UNANSWERABLE_STRESS
SIZE = 0.1  # rates of two seeds of standard attention are 0.3 apart
REFUSAL_RATE = 0.05  # on answerable questions, the same for all arms
EXAMPLES = 512
HALLUCINATIONS = Effect(
    "answers to unanswerable questions",
    ARMS["standard"].name,
    versus=ARMS["V1"].name,
    condition=f"equal refusal rate, {STRESS.name}",
)
HALLUCINATIONS_LEFT = replace(HALLUCINATIONS, versus=None)


def outcome(
    model: TrainedModel, which: str, equal_refusals: bool, condition: Condition = STRESS
) -> Numbers:
    """Return 1 or 0 per question of a kind.

    Args:
        model: trained on the unanswerable task.
        which: `hallucinated` (answers to unanswerable questions), `refused` (refusals of answerable
            ones) or `correct` (correct answers to answerable ones).
        equal_refusals: shift the refusal's logit until the model refuses REFUSAL_RATE of the
            answerable questions, so that caution cannot pass for knowledge.
        condition: of the sequences.
    """
    found = answers(model, condition, EXAMPLES)
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

    version = 7
    arms = tuple(ARMS.values())
    conditions = (AS_TRAINED, STRESS)
    predictions = (
        Prediction(
            "cancelling",
            HALLUCINATIONS,
            "more",
            SIZE,
            "less noise is mistaken for an answer",
            gates=(
                learned(ARMS["standard"].name),
                learned(ARMS["V1"].name),
                room(HALLUCINATIONS_LEFT, SIZE),
                noise(STRESS.name, ARMS["standard"].name),
            ),
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        hallucinated = partial(outcome, which="hallucinated", equal_refusals=True)
        effects = learned_effects(models, self.arms) | {
            HALLUCINATIONS: models.gain(ARMS["standard"], ARMS["V1"], hallucinated),
            HALLUCINATIONS_LEFT: models.values(ARMS["standard"], hallucinated),
        }
        effects |= noise_effect(models, ARMS["standard"], STRESS)
        columns = {
            "answers to unanswerable": "hallucinated",
            "refusals of answerable": "refused",
            "correct answers": "correct",
        }
        rows = [
            interval_row(
                f"{name}, {condition.name}" + (f", refusing {REFUSAL_RATE:.0%}" if equal else ""),
                *(
                    models.values(
                        arm,
                        partial(outcome, which=which, equal_refusals=equal, condition=condition),
                    )
                    for which in columns.values()
                ),
            )
            for condition in (AS_TRAINED, STRESS)
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
