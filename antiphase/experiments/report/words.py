"""The words of a report, each in one line, so that the page can be read alone."""

from antiphase.experiments.conditions import LENGTHS, STRESS
from antiphase.experiments.verdicts import LEARNED, LEVEL, MIN_SEEDS, NOISE_RANGE

WORDS: dict[str, str] = {
    "A1, A2, lam": (
        "the first (signal) and second (noise) attention map of a head, and the learned "
        "weight of the second; A1 - lam A2 is applied to V. Standard attention has one map, A"
    ),
    "Q, R, S, I, own": (
        "of a sequence whose answer is known: the query row that predicts it (Q); the "
        "relevant positions, key and value of the queried needle (R); the sink, the first "
        "token (S); the query's own tokens (own); all other visible positions, irrelevant (I)"
    ),
    "mass on R": "fraction of a row's |weight| that lies on R; likewise on I and on S",
    "retrieval head": (
        "a head whose mass on R exceeds half the largest of its model, chosen on validation "
        "sequences. Metrics of maps are those of retrieval heads"
    ),
    "as trained, stress": (
        "conditions of the held-out sequences. As trained: as in training. Stress (in tables: "
        f"{STRESS.name}): sequences {STRESS.length:g} times as long as in training, each needle "
        "once, all distractors near. Near distractors have keys that needles of other sequences "
        "have; far ones have keys that no needle has"
    ),
    "null": (
        "the same measurement where there is nothing to find, e.g. with A2 of another head or "
        "of another sequence; an effect counts beyond its null"
    ),
    "how cells combine": (
        "a number is measured on each held-out sequence; one seed's value is the mean over "
        "its sequences (of two arms: of the paired differences); the interval is over the "
        "seeds. In the grid of test 7, the effect of noise is near minus far, as a mean over "
        f"the lengths; the effect of length is {LENGTHS[1]:g}x minus {LENGTHS[0]:g}x, as a mean "
        "over far and near"
    ),
    "interval": "mean [low, high]: 95%, by Student's t over the values of the seeds",
    "agreement": "Pearson correlation of log A1 and log A2 over positions, here I or R",
    "CMRR": (
        "common-mode rejection ratio in dB: above 0, the subtraction reduces weights on I "
        "more than those on R"
    ),
    "effective rank": (
        "exp of the entropy of a map's normalised singular values: how many patterns its rows "
        "are made of"
    ),
    "Gini": (
        "inequality of a row's |weights|: 0 if all are equal, towards 1 if one has everything"
    ),
    "branch RMS": (
        "root mean square of what attention, or the feed-forward layer, adds to the residual stream"
    ),
    "arm, seed": (
        "one kind of model in a test; the number that sets initial weights and data. Arms are "
        "compared seed by seed"
    ),
    "gates": (
        "must hold before a prediction is judged, in the mean over all seeds. Learned: "
        f"accuracy as trained at least {LEARNED:g}. Room: the baseline leaves twice the size "
        "that counts (for no worse: standard attention does). Noise: standard's retrieval heads "
        f"put {NOISE_RANGE[0]:g} to {NOISE_RANGE[1]:g} of their mass on I. "
        "Manipulation: a change took hold"
    ),
    "verdicts": (
        "supported, refuted or undecided by the interval; invalid if a gate failed, so the "
        f"test is inconclusive; none below {MIN_SEEDS} seeds. A test's verdict on a reading is "
        "that on the reading's primary prediction"
    ),
    "p, Holm": (
        "one-sided p of a prediction; it survives if, adjusted by Holm's method for all "
        f"primary predictions that were run, it is below {LEVEL:g}"
    ),
}

RECIPE_NOTE = "All models share this recipe, except for the changes named at each test."
MAPS_NOTE = (
    "Rows are queries, columns are the tokens that they attend to; blue weights are positive, "
    "orange ones negative, white is zero, and the colour is strongest from ±0.5 on. Green: the "
    "columns of the answer. Black: the row of the question. Grey: later tokens. Of each arm the "
    "two heads with the largest mass on R."
)
