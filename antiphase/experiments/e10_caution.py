"""Test 10: fewer hallucinations, or only more caution."""

import numpy as np
import torch
from numpy.typing import NDArray

from antiphase.experiments.accuracy_under_stress import STRESS
from antiphase.experiments.arms import Arm, Trained
from antiphase.experiments.experiment import (
    Experiment,
    Measured,
    Shelf,
    Table,
    bars,
    base,
    interval_row,
)
from antiphase.experiments.model_measurements import answers
from antiphase.experiments.verdicts import Prediction

ARMS = {
    name: Arm(f"{name}, unanswerable", base(attention, task="unanswerable"))
    for name, attention in (("standard", "standard"), ("V1", "diff_v1"), ("V2", "diff_v2"))
}
REFUSE = 0.05  # of the questions that have an answer, at the same rate for all
SIZE = 512
UNDER = "twice as long, near noise"
EFFECT = f"wrong answers where there is none, V1 minus standard, at equal refusals, {UNDER}"


def outcomes(trained: Trained, level: bool, under: str) -> dict[str, NDArray[np.float64]]:
    """Return wrong answers where there is none, refusals where there is one, and right answers.

    With `level`, the refusal's logit is shifted until the model refuses the same share of questions
    that have an answer, so that caution cannot pass for knowledge.
    """
    found = answers(trained, SIZE, **STRESS[under])
    refusal = trained.held_out(1).refusal
    logits, absent = found.logits.clone(), found.truth == refusal
    others = logits.clone()
    others[:, refusal] = -torch.inf
    margin = logits[:, refusal] - others.amax(-1)  # above 0: refuses
    shift = torch.quantile(margin[~absent], 1 - REFUSE) if level else torch.zeros(())
    refuses = margin > shift
    right = others.argmax(-1) == found.truth
    return {
        "wrong": (~refuses[absent]).double().numpy(),
        "refused": refuses[~absent].double().numpy(),
        "right": (right & ~refuses)[~absent].double().numpy(),
    }


class Caution(Experiment):
    """Answerable and unanswerable retrieval, both errors, then at equal refusals."""

    number = 10
    version = 3
    title = "Hallucination or caution"
    question = "Does it answer less where there is no answer, at the same rate of refusals?"
    amended = (
        "Amended after a first run: on the task as trained nobody errs, so the prediction now "
        "speaks of harder texts, which had not been measured before."
    )
    arms = tuple(ARMS.values())
    predictions = (
        Prediction("cancelling", EFFECT, "below", 0.02, "less noise is taken for an answer"),
    )

    def measure(self, shelf: Shelf) -> Measured:
        effects = {
            EFFECT: shelf.gain(
                ARMS["V1"], ARMS["standard"], lambda t: outcomes(t, True, UNDER)["wrong"]
            )
        }
        rows = [
            interval_row(
                f"{name}, {under}" + (f", refusing {REFUSE:.0%}" if level else ""),
                *(
                    shelf.values(arm, lambda t, k=kind, e=level, u=under: outcomes(t, e, u)[k])  # type: ignore[misc]
                    for kind in ("wrong", "refused", "right")
                ),
            )
            for under in ("as trained", UNDER)
            for name, arm in ARMS.items()
            for level in (False, True)
        ]
        columns = ["", "answers where there is none", "refusals where there is one", "right"]
        picture = bars(
            f"Answers where there is none, all refusing {REFUSE:.0%} of what has an answer",
            "share",
            {
                "": {
                    n: shelf.values(a, lambda t: outcomes(t, True, UNDER)["wrong"])
                    for n, a in ARMS.items()
                }
            },
        )
        return Measured(effects, [Table("Answers and refusals", columns, rows)], [picture])
