"""Test 4: standard attention over the k largest scores, since any sparse attention might do."""

from antiphase.experiments.arms import STANDARD, TOP_K, V1
from antiphase.experiments.contests import compare, contest
from antiphase.experiments.experiment import Experiment, Measurement
from antiphase.experiments.trained_models import TrainedModels


class TopKTest(Experiment):
    """Top-k attention against V1; k is chosen in tuning."""

    version = 5
    arms = (STANDARD, V1, TOP_K)
    predictions = (
        contest("sparsity", TOP_K, V1, "no worse", "any sparse attention would do", primary=True),
        contest(
            "cancelling",
            V1,
            TOP_K,
            "more",
            "sparsity without subtraction keeps noise",
            primary=True,
        ),
    )

    def measure(self, models: TrainedModels) -> Measurement:
        pairs = [(TOP_K, V1), (V1, TOP_K), (V1, STANDARD), (TOP_K, STANDARD)]
        return compare(models, self.arms, pairs)
