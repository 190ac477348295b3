"""Test 24: follow-up on top-k, with each k as an arm of its own, tuned by itself.

In test 4, k was chosen at one learning rate and branch scale, before the others were tuned.
"""

from antiphase.analysis.statistics import seed_interval
from antiphase.experiments.arms import STANDARD, TOP_16, V1, Arm
from antiphase.experiments.conditions import STRESS
from antiphase.experiments.contests import compare, contest
from antiphase.experiments.experiment import Chart, Experiment, Measurement
from antiphase.experiments.model_measurements import accuracy
from antiphase.experiments.trained_models import TrainedModels

TOP_KS = {
    k: TOP_16 if k == 16 else Arm(f"top-k, k = {k}", "top_k", {"k": k}) for k in (4, 8, 16, 32)
}


class TopKCurveTest(Experiment):
    """Top-k attention with k of 4, 8, 16 and 32 against V1 and standard attention."""

    arms = (STANDARD, V1, *TOP_KS.values())
    predictions = (
        *(
            contest(
                "sparsity",
                arm,
                V1,
                "no worse",
                "any sparse attention would do",
                primary=arm == TOP_16,
            )
            for arm in TOP_KS.values()
        ),
        contest("sparsity", TOP_16, STANDARD, "more", "what helps is that few tokens remain"),
        contest(
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
        found = compare(models, self.arms, pairs)
        series = {
            name: [(k, seed_interval(models.values(arm, accuracy))) for k, arm in by_k.items()]
            for name, by_k in {
                "top-k": TOP_KS,
                **{arm.name: dict.fromkeys(TOP_KS, arm) for arm in (STANDARD, V1)},
            }.items()
        }
        found.figures.append(Chart(f"Accuracy by k, {STRESS.name}", "k", "accuracy", series))
        return found
