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
    "standard, V1, V2": (
        "softmax attention; differential attention as published (diff_v1); its second form "
        "(diff_v2), whose lam depends on the token"
    ),
    "head norm": (
        "V1 normalises the output of each head (RMS norm) before W_O; 'standard + head norm' adds "
        "that to standard attention, 'V1 without head norm' leaves it out"
    ),
    "top-k, signed mask, gated, off by one": (
        "standard attention over the k largest scores of a row; times a learned sign between -1 "
        "and 1; with a sigmoid gate on each head's output; with one more, learned term in "
        "softmax's denominator, so that a row may sum to less than 1"
    ),
    "rectified, simplex": (
        "V1's map with its negative weights set to 0; the same, then divided by its sum, so that "
        "it is on the simplex again. Both without head norm"
    ),
    "foreign noise, random noise": (
        "V1 whose A2 is that of another sequence; V1 whose A2 comes from frozen random weights"
    ),
    "low-rank noise, fixed noise": (
        "V1 whose A2 is linear attention, of low rank; V1 whose A2 is the same for all queries"
    ),
    "scalar, rank penalty": (
        "one learned factor per layer in place of the head norm; V1 trained with the effective "
        "rank of A2 in its loss"
    ),
    "needle, query, distractor, filler": (
        "a needle is a key and its value; a query is a key that occurs again, to be answered with "
        "its value; a distractor is a pair with another key; fillers are other tokens"
    ),
    "order": "a permutation of the pairs before the question, which stays the same",
    "chain": (
        "assignments of which each adds a number to the variable before; other chains of the same "
        "form distract"
    ),
    "decoy": "a key that only distractors have, never a needle",
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
        "over far and near. Test 23 has three lengths and three levels of noise, of which half "
        "near is the middle"
    ),
    "interval": (
        "mean [low, high]: 95%, by Student's t over the values of the seeds. The interval of a "
        "fraction may reach below 0 or above 1, since t takes no account of that limit"
    ),
    "agreement": (
        "Pearson correlation of log A1 and log A2 over positions, here I or R: within rows, or "
        "over all rows of all sequences together (over sequences)"
    ),
    "disagreement": "mean of |A1 - A2| / (A1 + A2): 0 if the maps are equal, 1 without overlap",
    "Jensen-Shannon": (
        "divergence of A1 and A2, each renormalised over I or R, in bits: 0 if they are equal, at "
        "most 1"
    ),
    "CMRR": (
        "common-mode rejection ratio in dB: above 0, the subtraction reduces weights on I "
        "more than those on R"
    ),
    "effective rank": (
        "exp of the entropy of a map's normalised singular values: how many patterns its rows "
        "are made of"
    ),
    "participation ratio, rank at 90% energy": (
        "two other ranks by singular values s: (sum of s²)² / sum of s⁴; how many hold 90% of the "
        "sum of s²"
    ),
    "entropy": "of a row's |weights|, over that of a uniform row: 1 uniform, 0 if one has all",
    "Gini": (
        "inequality of a row's |weights|: 0 if all are equal, towards 1 if one has everything"
    ),
    "Hoyer": "Hoyer's sparsity, (√n - l1/l2) / (√n - 1) of n weights: 0 uniform, 1 if one has all",
    "fraction above 1/T, max weight": (
        "of a row's |weights|: fraction of visible positions with more than the uniform weight; "
        "the largest"
    ),
    "negative mass, fraction outside [0, 1]": (
        "fraction of a row's |weight| that is negative; fraction of the weights themselves that "
        "lie below 0 or above 1, which softmax does not allow"
    ),
    "logit drop": (
        "how far the answer's logit falls if A2 is edited; above 0, A2 as it was helped. Edits: "
        "knocked out (lam = 0), that of another example, of rank 1 or of rank 4 (truncated), "
        "running mean (a uniform A2)"
    ),
    "cosine of the noise term": "of -lam A2 V W_O with the residual stream that it is added to",
    "loss, accuracy": (
        "cross-entropy of the answer in nats; fraction of queries whose answer is predicted, with "
        "the largest logit of all tokens"
    ),
    "FLOPs per token": "floating-point operations of one more token after that many others",
    "branch RMS": (
        "root mean square of what attention, or the feed-forward layer, adds to the residual stream"
    ),
    "branch scale": (
        "factor on the initial W_O, so on what attention adds to the stream at first; tuned for "
        "each arm, like the learning rate lr"
    ),
    "wsd": (
        "warm-up, stable, decay: a learning rate that rises, stays constant until the criterion is "
        "reached, then falls"
    ),
    "criterion, log-rank": (
        "the held-out accuracy, at two evaluations in a row, at which a run begins to end; the "
        "log-rank test compares the steps to it, also where runs never reached it"
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
        "supported, refuted or undecided by the interval; invalid if a gate failed, so that the "
        "test is inconclusive, or if it was withdrawn after the study; none below "
        f"{MIN_SEEDS} seeds. A test's verdict on a reading is that on the reading's primary "
        "prediction"
    ),
    "half-width, detectable": (
        "half the width of an interval; the true difference that a study of this size tells from 0 "
        "four times in five"
    ),
    "p, Holm": (
        "one-sided p of a prediction; it survives if, adjusted by Holm's method for all "
        f"primary predictions that were run, it is below {LEVEL:g}. That of a predicted gain is of "
        "a difference from 0: a gain may be certain, and refuted as smaller than the size that "
        "counts"
    ),
}

INTRODUCTION = (
    "Differential attention computes two attention maps per head, A1 and A2, and applies their "
    "difference A1 - lam A2 to V. Three readings of why that works, each with predictions that "
    "could fail:"
)
RECIPE_NOTE = (
    "All models share this recipe, except for the attention mechanism, the seed and the changes "
    "named at each test."
)
MAPS_NOTE = (
    "Rows are queries, columns are the tokens that they attend to; blue weights are positive, "
    "orange ones negative, white is zero, and the colour is strongest from ±0.5 on. Green: the "
    "columns of the answer. Black: the row of the question. Grey: later tokens. Of each arm the "
    "two heads with the largest mass on R."
)

SETTINGS: dict[str, str] = {
    "size": "of the model: a preset of width, layers and feed-forward width",
    "attention": "the mechanism; each arm has its own",
    "model.num_attention_heads": "heads of standard attention; V1 has half as many",
    "model.hidden_size": "width of the residual stream",
    "model.branch_scale": "factor on the initial W_O, so on what attention adds at first",
    "task": "what is learned",
    "task_options.length": "tokens of a sequence",
    "task_options.keys": "different keys that needles have",
    "task_options.values": "different values",
    "task_options.fillers": "different filler tokens",
    "task_options.decoys": "different keys that only distractors have",
    "task_options.needles": "needles in a sequence",
    "task_options.repeats": "how often each needle occurs again, as a query",
    "task_options.queried": "needles that are queried at the end",
    "task_options.noise": "fraction of all other places that hold distractors",
    "task_options.near": "fraction of the distractors that are near",
    "steps": "optimiser steps, at most",
    "batch_size": "sequences per step",
    "accumulate": "parts that a batch is computed in",
    "seed": "of initial weights and data; each run of an arm has its own",
    "lr": "peak learning rate; tuned for each arm, if the study tunes",
    "beta1": "of AdamW: decay of the mean gradient",
    "beta2": "of AdamW: decay of the mean squared gradient",
    "weight_decay": "of AdamW",
    "clip": "largest gradient norm",
    "rank_penalty": "weight of the rank of A2 in the loss",
    "schedule": "course of the learning rate",
    "warmup": "steps, or fraction of the steps, until the peak",
    "final_lr": "last learning rate, as a fraction of the peak",
    "decay": "fraction of the steps after warm-up in which the rate falls",
    "criterion": "held-out accuracy, at two evaluations in a row, that begins the decay",
    "precision": "number format",
    "compile": "whether the model is compiled",
    "checkpointing": "whether activations are computed again to save memory",
    "threads": "of the CPU, for each run",
    "log_every": "steps between log lines",
    "evaluate_every": "steps between evaluations",
    "evaluate_examples": "held-out sequences of an evaluation",
    "calibration_examples": "sequences on which methods for pretrained models choose heads",
    "checkpoint_every": "steps between checkpoints",
    "keep": "checkpoints that are kept",
    "milestones": "steps whose weights are kept",
    "on_divergence": "what happens if the loss is not finite",
}
"""What a setting of the recipe means; options are named as in the table of the recipe."""
