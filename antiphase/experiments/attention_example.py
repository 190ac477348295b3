"""Where attention goes on one held-out sequence: what the report draws of the trained models.

It holds numbers and tokens only, so that a report can be drawn again without the models.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphase.analysis.capture import LayerMaps, capture
from antiphase.analysis.ground_truth import GroundTruth, ground_truth
from antiphase.analysis.metrics.allocation import allocation
from antiphase.analysis.retrieval_heads import RetrievalHeads
from antiphase.experiments.arms import STANDARD, V1, V2, Arm
from antiphase.experiments.conditions import STRESS
from antiphase.experiments.model_measurements import heads_that_retrieve
from antiphase.experiments.trained_models import TrainedModels

ROW_ARMS = (STANDARD, V1, V2)
MAP_ARMS = (STANDARD, V1)
HEADS = 2  # whose complete maps are kept, of each arm
CANDIDATES = 64  # sequences among which one with its needle near the middle is found
MIDDLE = (0.3, 0.7)
DIGITS = 3  # of stored weights


@dataclass(frozen=True)
class AttentionRow:
    """An arm's attention at the query, as a mean over its retrieval heads.

    Attributes:
        arm: name of the arm.
        heads: number of retrieval heads.
        signal: weights of A1 on each token.
        noise: weights of lam A2; None with one map per head.
        difference: weights of the map that is applied to V.
        predicted: the token that the model predicts.
        on_answer: fraction of |difference| on R.
        on_others: fraction of |difference| on I.
    """

    arm: str
    heads: int
    signal: list[float]
    noise: list[float] | None
    difference: list[float]
    predicted: str
    on_answer: float
    on_others: float


@dataclass(frozen=True)
class HeadMap:
    """A complete attention map of one head.

    Attributes:
        arm: name of the arm.
        layer: of the head.
        head: its number in the layer.
        retrieves: whether it is a retrieval head.
        name: which map: "A", "A1", "A2" or "A1 - lam A2".
        lam: at the query; None with one map per head.
        thousandths: rows up to their last visible token, in thousandths.
    """

    arm: str
    layer: int
    head: int
    retrieves: bool
    name: str
    lam: float | None
    thousandths: list[list[int]]

    @property
    def weights(self) -> NDArray[np.float64]:
        """Return the map, [T, T]; NaN for tokens that are not visible."""
        T = len(self.thousandths)
        found = np.full((T, T), np.nan)
        for i, row in enumerate(self.thousandths):
            found[i, : len(row)] = np.array(row) / 10**DIGITS
        return found


@dataclass(frozen=True)
class AttentionExample:
    """One held-out sequence, up to its query, and where each arm's attention goes.

    Attributes:
        tokens: of the sequence; the last one is the query.
        target: the token to predict.
        answer: positions of the queried key and its value, R.
        query: positions of the query's own tokens.
        sequence: which sequence of the test split.
        seed: of the models and of the sequences.
        condition: of the sequence.
        rows: attention at the query, by arm.
        maps: complete maps of a few heads.
    """

    tokens: list[str]
    target: str
    answer: list[int]
    query: list[int]
    sequence: int
    seed: int
    condition: str
    rows: list[AttentionRow]
    maps: list[HeadMap]

    @property
    def source(self) -> str:
        """Say which sequence it is."""
        return f"held-out sequence {self.sequence} of seed {self.seed}, {self.condition}"

    def title(self, of: HeadMap) -> str:
        """Return arm, map, layer, head and sequence of a map."""
        head = f"layer {of.layer}, head {of.head}"
        return f"{of.arm}: {of.name}, {head}, sequence {self.sequence}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON types; a row of a map is one string."""
        fields = asdict(self)
        for kept in fields["maps"]:
            kept["thousandths"] = [" ".join(map(str, row)) for row in kept["thousandths"]]
        return fields

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "AttentionExample":
        """Return the example that `as_dict` stored."""
        rows = [AttentionRow(**row) for row in fields["rows"]]
        maps = [
            HeadMap(
                **{
                    **kept,
                    "thousandths": [[int(n) for n in row.split()] for row in kept["thousandths"]],
                }
            )
            for kept in fields["maps"]
        ]
        return cls(**{**fields, "rows": rows, "maps": maps})


def attention_example(models: TrainedModels) -> AttentionExample | None:
    """Return the attention of the first seed's models on one sequence; None without models.

    The sequence is the first of the test split, under stress, whose needle is near the middle. The
    models have no influence on the choice.
    """
    arms = [arm for arm in ROW_ARMS if arm in models]
    if not arms:
        return None
    first = models[arms[0]][0]
    data = first.held_out(CANDIDATES, condition=STRESS)
    batch = data.examples(range(CANDIDATES))
    every = ground_truth(batch, last=1)
    chosen = _near_the_middle(every)
    kept = every.select(torch.tensor([chosen]))
    T = int(kept.rows[0, 0]) + 1
    ids = torch.from_numpy(batch.tokens[chosen : chosen + 1, :T])
    kinds = (kept.relevant[..., :T], kept.sink[..., :T], kept.irrelevant[..., :T])
    truth = GroundTruth(kept.rows, *kinds, kept.depth)
    rows, maps = [], []
    for arm in arms:
        model = models[arm][0]
        captured = capture(model.load(), ids, "all")
        predicted = data.id_to_token[int(captured.logits[0, -1].argmax())]
        heads = heads_that_retrieve(model)
        rows.append(_row(arm, captured.layers, heads, truth, predicted))
        if arm in MAP_ARMS:
            maps += _maps(arm, captured.layers, heads)
    return AttentionExample(
        [data.id_to_token[token] for token in ids[0].tolist()],
        data.id_to_token[int(batch.tokens[chosen, T])],
        _positions(truth.relevant[0, 0]),
        _positions(truth.own[0, 0]),
        chosen,
        first.run.recipe.seed,
        STRESS.name,
        rows,
        maps,
    )


def _near_the_middle(truth: GroundTruth) -> int:
    """Return the first sequence whose needle is near the middle; the first one without any."""
    depth = truth.depth[:, 0]
    fits = ((depth >= MIDDLE[0]) & (depth <= MIDDLE[1])).nonzero()[:, 0]
    return int(fits[0]) if len(fits) else 0


def _row(
    arm: Arm,
    layers: Sequence[LayerMaps],
    heads: RetrievalHeads,
    truth: GroundTruth,
    predicted: str,
) -> AttentionRow:
    """Return the weights of the last row, as a mean over all retrieval heads of the model."""

    def mean(of: str) -> list[float]:
        chosen = [
            _last_row(layer, of)[mask]  # [heads, T]
            for layer, mask in zip(layers, heads.layers, strict=True)
        ]
        return _rounded(torch.cat(chosen).mean(0))

    shares = [allocation(layer.difference[:, :, -1:], truth) for layer in layers]

    def share(kind: str) -> float:
        found = heads.model_mean([s[kind] for s in shares])
        assert found is not None, "softmax gives every visible token some weight"
        return float(found[0])

    return AttentionRow(
        arm.name,
        sum(int(mask.sum()) for mask in heads.layers),
        mean("signal"),
        None if layers[0].noise is None else mean("noise"),
        mean("difference"),
        predicted,
        share("relevant"),
        share("irrelevant"),
    )


def _last_row(layer: LayerMaps, of: str) -> Tensor:
    """Return the last row of each head's map, [h, T]; the noise map is multiplied by lam."""
    if of != "noise":
        return getattr(layer, of)[0, :, -1]
    assert layer.noise is not None
    assert layer.lam is not None
    return (layer.lam * layer.noise)[0, :, -1]


def _maps(arm: Arm, layers: Sequence[LayerMaps], heads: RetrievalHeads) -> list[HeadMap]:
    """Return the maps of the heads with the largest mass on R."""
    places = [(i, j) for i, masses in enumerate(heads.masses) for j in range(len(masses))]
    places.sort(key=lambda place: -float(heads.masses[place[0]][place[1]]))
    found = []
    for i, j in places[:HEADS]:
        layer, retrieves = layers[i], bool(heads.layers[i][j])
        if layer.noise is None or layer.lam is None:
            named, lam = {"A": layer.difference}, None
        else:
            lam = round(float(layer.lam[0, j, -1, 0]), DIGITS)  # [B, h, T or 1, 1]
            named = {"A1": layer.signal, "A2": layer.noise, "A1 - lam A2": layer.difference}
        found += [
            HeadMap(arm.name, i, j, retrieves, name, lam, _thousandths(A[0, j]))
            for name, A in named.items()
        ]
    return found


def _thousandths(A: Tensor) -> list[list[int]]:
    rounded = (A * 10**DIGITS).round().long()
    return [row[: i + 1].tolist() for i, row in enumerate(rounded)]


def _rounded(values: Tensor) -> list[float]:
    return [round(value, DIGITS + 1) for value in values.tolist()]


def _positions(mask: Tensor) -> list[int]:
    return [int(i) for i in mask.nonzero()[:, 0]]
