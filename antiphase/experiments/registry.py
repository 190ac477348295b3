"""Every test of the lab. A new test is a new file `eNN_name.py` and an entry here.

The entries hold all that a listing shows; a test's module is imported when the test is loaded.
"""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphase.experiments.experiment import Experiment


QUICK, PRIMARY = "quick", "primary"
SYNTHETIC = "synthetic"
REPLICATION = "replication"
ON_TEXT = LADDER_NANO, LADDER_MICRO, LADDER_MINI = "ladder-nano", "ladder-micro", "ladder-mini"
LOCKED = (PRIMARY, SYNTHETIC, REPLICATION, *ON_TEXT)
"""Studies that `--study` names; each needs a lock."""


@dataclass(frozen=True)
class RegisteredTest:
    """One test of the lab, before it is imported.

    Attributes:
        number: as in `antiphase lab --only NUMBER`.
        title: a few words.
        question: what the test settles.
        location: `module:class` of its `Experiment`.
        studies: names of the plans that it belongs to; `quick` is that of plain `antiphase lab`.
    """

    number: int
    title: str
    question: str
    location: str
    studies: tuple[str, ...] = ()

    @property
    def text(self) -> bool:
        """Return whether it measures models of text; only studies on text run it."""
        return bool(set(self.studies) & set(ON_TEXT))

    def load(self) -> "Experiment":
        """Import the test's module and return its experiment.

        Raises:
            ValueError: a reading has no primary prediction in the test, or several.
        """
        from antiphase.experiments.verdicts import require_one_primary

        module, _, name = self.location.partition(":")
        experiment: Experiment = getattr(importlib.import_module(module), name)()
        require_one_primary(f"{self.number} ({self.title})", experiment.predictions)
        return experiment


_TESTS = (
    RegisteredTest(
        1,
        "Agreement",
        "Do the two maps carry the same noise: do they agree on irrelevant tokens?",
        "antiphase.experiments.e01_agreement:AgreementTest",
        studies=(QUICK, PRIMARY, REPLICATION),
    ),
    RegisteredTest(
        2,
        "Pure cancellation",
        "With lam fixed at 1, 0.8, 0.5 or 0: does subtraction help more with more distractors?",
        "antiphase.experiments.e02_fixed_lambda:FixedLambdaTest",
        studies=(SYNTHETIC,),
    ),
    RegisteredTest(
        3,
        "Gradient dynamics",
        "Does training make the maps agree on irrelevant tokens?",
        "antiphase.experiments.e03_gradients:GradientsTest",
        studies=(SYNTHETIC,),
    ),
    RegisteredTest(
        4,
        "Top-k",
        "Does standard attention with top-k do as well as V1?",
        "antiphase.experiments.e04_top_k:TopKTest",
        studies=(PRIMARY, REPLICATION),
    ),
    RegisteredTest(
        5,
        "Sparsity",
        "Are differential maps sparser than standard ones, or do they leave the simplex?",
        "antiphase.experiments.e05_sparsity:SparsityTest",
        studies=(QUICK, PRIMARY, REPLICATION),
    ),
    RegisteredTest(
        6,
        "Signed mask",
        "Does one softmax with a learned sign do what the difference of two does?",
        "antiphase.experiments.e06_signed_mask:SignedMaskTest",
        studies=(PRIMARY, REPLICATION),
    ),
    RegisteredTest(
        7,
        "Length against noise",
        "Does the gain grow with noise at fixed length, or with length at fixed noise?",
        "antiphase.experiments.e07_grid:GridTest",
        studies=(QUICK, PRIMARY, REPLICATION),
    ),
    RegisteredTest(
        8,
        "Head norm",
        "Does the head norm make the difference, rather than the subtraction?",
        "antiphase.experiments.e08_norm:NormTest",
        studies=(PRIMARY, REPLICATION),
    ),
    RegisteredTest(
        9,
        "Finer heads",
        "Do more, narrower heads do as well without subtraction?",
        "antiphase.experiments.e09_finer_heads:FinerHeadsTest",
        studies=(SYNTHETIC,),
    ),
    RegisteredTest(
        10,
        "Hallucination or caution",
        "Are there fewer answers to unanswerable questions, at the same refusal rate?",
        "antiphase.experiments.e10_caution:CautionTest",
        studies=(SYNTHETIC,),
    ),
    RegisteredTest(
        11,
        "Sinks",
        "Does differential attention have no attention sinks, and which others have none?",
        "antiphase.experiments.e11_sinks:SinksTest",
        studies=(LADDER_NANO,),
    ),
    RegisteredTest(
        12,
        "Gating",
        "Can a gated multi-head layer match differential attention at equal parameters?",
        "antiphase.experiments.e12_gating:GatingTest",
        studies=(PRIMARY, REPLICATION),
    ),
    RegisteredTest(
        13,
        "Cheap noise",
        "Is the noise map of low rank, and does a cheap noise map do as well as a full one?",
        "antiphase.experiments.e13_cheap_noise:CheapNoiseTest",
        studies=(PRIMARY, REPLICATION),
    ),
    RegisteredTest(
        15,
        "Layer by layer",
        "Where does the noise term matter most for the answer?",
        "antiphase.experiments.e15_layers:LayersTest",
        studies=(QUICK, PRIMARY, REPLICATION),
    ),
    RegisteredTest(
        16,
        "Order of pairs",
        "Does the order of the pairs in the context matter less to it?",
        "antiphase.experiments.e16_order:OrderTest",
        studies=(SYNTHETIC,),
    ),
    RegisteredTest(
        17,
        "Multi-needle",
        "Does it find more of several needles, by their number, depth and the length?",
        "antiphase.experiments.e17_multi_needle:MultiNeedleTest",
        studies=(SYNTHETIC,),
    ),
    RegisteredTest(
        18,
        "Arithmetic chains",
        "Does it follow a chain of assignments better as other chains become more?",
        "antiphase.experiments.e18_arithmetic:ArithmeticTest",
    ),
    RegisteredTest(
        19,
        "Outliers",
        "Does differential attention have smaller outliers, and do few bits cost it less?",
        "antiphase.experiments.e19_outliers:OutliersTest",
        studies=ON_TEXT,
    ),
    RegisteredTest(
        20,
        "Ladder",
        "Does differential attention model text better than standard attention of equal size?",
        "antiphase.experiments.e20_ladder:LadderTest",
        studies=ON_TEXT,
    ),
    RegisteredTest(
        21,
        "Starts",
        "How does the loss of each mechanism depend on its initialisation?",
        "antiphase.experiments.e21_start:StartTest",
        studies=(LADDER_NANO,),
    ),
    RegisteredTest(
        22,
        "Head count",
        "How does V1 fare with 2, 4 and 8 heads?",
        "antiphase.experiments.e22_head_count:HeadCountTest",
        studies=(LADDER_MICRO,),
    ),
    RegisteredTest(
        23,
        "Length against noise, full grid",
        "In a grid of 3 lengths and 3 levels of noise: whose gain grows with which?",
        "antiphase.experiments.e23_full_grid:FullGridTest",
        studies=(SYNTHETIC,),
    ),
    RegisteredTest(
        24,
        "Top-k, follow-up",
        "Does top-k attention with any k of 4 to 32 do as well as V1?",
        "antiphase.experiments.e24_top_k_curve:TopKCurveTest",
        studies=(SYNTHETIC,),
    ),
    RegisteredTest(
        25,
        "Head norm, follow-up",
        "Does one learned scalar do what the head norm does?",
        "antiphase.experiments.e25_scalar:ScalarTest",
        studies=(SYNTHETIC,),
    ),
    RegisteredTest(
        26,
        "Cheap noise, follow-up",
        "Does V1 do as well if training lowers the rank of its noise maps, or fixes them?",
        "antiphase.experiments.e26_rank_penalty:RankPenaltyTest",
        studies=(SYNTHETIC,),
    ),
    RegisteredTest(
        27,
        "Foreign noise, follow-up",
        "Does a second map from frozen random weights do as well as V1's own?",
        "antiphase.experiments.e27_random_noise:RandomNoiseTest",
        studies=(SYNTHETIC,),
    ),
    RegisteredTest(
        28,
        "Sparsity, follow-up",
        "Have V1's rows less entropy, and does noise cancel in the output of its heads?",
        "antiphase.experiments.e28_output_noise:OutputNoiseTest",
        studies=(SYNTHETIC,),
    ),
)

EXPERIMENTS: dict[int, RegisteredTest] = {test.number: test for test in _TESTS}


def tests_of(study: str) -> tuple[int, ...]:
    """Return the numbers of the tests of a study."""
    return tuple(number for number, test in EXPERIMENTS.items() if study in test.studies)
