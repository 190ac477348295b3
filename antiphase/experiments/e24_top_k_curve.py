"""Test 24: follow-up on top-k, with each k as an arm of its own, tuned by itself.

In test 4, k was chosen at one learning rate and branch scale, before the others were tuned.
"""

from functools import partial

from antiphase.analysis.statistics import seed_interval
from antiphase.experiments.arms import STANDARD, TOP_16, V1, Arm
from antiphase.experiments.conditions import SYNTHETIC_CONDITIONS, SYNTHETIC_STRESS
from antiphase.experiments.contests import compare_synthetic, synthetic_contest
from antiphase.experiments.experiment import Chart, Experiment, Measurement
from antiphase.experiments.model_measurements import accuracy
from antiphase.experiments.trained_models import TrainedModels

TOP_KS = {
    k: TOP_16 if k == 16 else Arm(f"top-k, k = {k}", "top_k", {"k": k}) for k in (4, 8, 16, 32)
}


class TopKCurveTest(Experiment):
    """Top-k attention with k of 4, 8, 16 and 32 against V1 and standard attention."""

    conditions = SYNTHETIC_CONDITIONS
    arms = (STANDARD, V1, *TOP_KS.values())
    predictions = (
        *(
            synthetic_contest(
                "sparsity",
                arm,
                V1,
                "no worse",
                "any sparse attention would do",
                primary=arm == TOP_16,
            )
            for arm in TOP_KS.values()
        ),
        synthetic_contest(
            "sparsity", TOP_16, STANDARD, "more", "what helps is that few tokens remain"
        ),
        synthetic_contest(
            "cancelling",
            V1,
            TOP_16,
            "more",
            "sparsity without subtraction keeps noise",
            primary=True,
            in_noise=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        pairs = [(V1, STANDARD), (V1, TOP_16)]
        pairs += [(arm, other) for arm in TOP_KS.values() for other in (V1, STANDARD)]
        found = compare_synthetic(models, self.arms, pairs)
        of_answers = partial(accuracy, condition=SYNTHETIC_STRESS)
        series = {
            name: [(k, seed_interval(models.values(arm, of_answers))) for k, arm in by_k.items()]
            for name, by_k in {
                "top-k": TOP_KS,
                **{arm.name: dict.fromkeys(TOP_KS, arm) for arm in (STANDARD, V1)},
            }.items()
        }
        found.figures.append(
            Chart(f"Accuracy by k, {SYNTHETIC_STRESS.name}", "k", "accuracy", series)
        )
        return found
