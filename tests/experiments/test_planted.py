"""The complete path from a model's answers and maps to a verdict, where the answer is known.

What models answer, attend to and lose is planted by arm, with a little noise by seed; everything
after that is the lab's own: retrieval heads, metrics, gates, intervals, verdicts.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from torch import Tensor

from antiphase.analysis.capture import CapturedMaps, LayerMaps
from antiphase.analysis.ground_truth import GroundTruth
from antiphase.analysis.metrics import flow
from antiphase.analysis.statistics import seed_interval
from antiphase.experiments import e13_cheap_noise, e15_layers, model_measurements
from antiphase.experiments.conditions import AS_TRAINED, GRID, STRESS, Condition
from antiphase.experiments.contests import gain_of
from antiphase.experiments.model_measurements import Answers, MapsOnTask
from antiphase.experiments.registry import EXPERIMENTS
from antiphase.experiments.results import Result
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Verdict, require_measured
from antiphase.models import preset
from tests.experiments.small import small_run

SEEDS, EXAMPLES = range(8), 500
B, H, T, LAYERS = 48, 4, 48, 2
RETRIEVING = torch.tensor([[False] * 4, [True, True, False, False]])  # by layer and head
CELLS = {condition: cell for cell, condition in GRID.items()}
S, R, I = Verdict.SUPPORTED, Verdict.REFUTED, Verdict.INVALID  # noqa: E741
folders = itertools.count()  # measurements are cached by model: a new world has new models


@dataclass(frozen=True)
class World:
    """What is planted, by name of the arm; an arm that is not named has the default.

    Attributes:
        learned: accuracy as trained, else 0.999.
        stress: accuracy elsewhere, else 0.7.
        loss: standard's loss on answers.
        gain: how much lower V1's loss is than standard's, by cell of the grid, else 0.
        noise: mass of standard's retrieval heads on I.
        retrieving: kind of V1's maps in retrieval heads; one of the kinds of `row_maps`.
        elsewhere: kind of V1's maps in the other heads.
        drop: fall of the answer's logit by edit of a head's noise map, [layer, head]; else 0.
        full_rank: whether noise maps have full rank, rather than rank 1.
    """

    learned: dict[str, float] = field(default_factory=dict)
    stress: dict[str, float] = field(default_factory=dict)
    loss: float = 1.0
    gain: dict[tuple[int, str], float] = field(default_factory=dict)
    noise: float = 0.4
    retrieving: str = "plain"
    elsewhere: str = "plain"
    drop: dict[str, list[list[float]]] = field(default_factory=dict)
    full_rank: bool = False


config = cache(partial(preset, "nano"))


def generator(*names: object) -> np.random.Generator:
    return np.random.default_rng([crc32(str(name).encode()) for name in names])


def answers(world: World, model: TrainedModel, condition: Condition) -> Answers:
    jitter = 0.005 * generator(model.arm, model.run.recipe.seed, condition.name).normal()
    correct = world.learned.get(model.arm, 0.999)
    if condition != AS_TRAINED:
        correct = world.stress.get(model.arm, 0.7) + jitter
    gain = world.gain.get(CELLS[condition], 0.0) if condition in CELLS else 0.0
    loss = world.loss - (gain if model.arm == "V1" else 0.0) + jitter
    return Answers(
        (np.arange(EXAMPLES) < round(correct * EXAMPLES)).astype(float),
        np.full(EXAMPLES, loss),
        torch.empty(0),
        torch.empty(0),
    )


def truth() -> GroundTruth:
    """Return one query per sequence: its own two tokens at the end, R in the middle."""
    here = torch.arange(T)
    relevant, sink, own = (here >= 10) & (here < 18), here == 0, here >= T - 2
    masks = [m.expand(B, 1, T) for m in (relevant, sink, ~(relevant | sink | own))]
    return GroundTruth(torch.full((B, 1), T - 1), *masks, torch.zeros(B, 1))


def row_maps(kind: str, on_relevant: float, noise: float, rng: np.random.Generator) -> LayerMaps:
    """Return maps of rows with a mass on R, a mass `noise` on I, and the rest on S.

    `plain`: nothing is subtracted. `sharp`: nothing is subtracted, and there is little noise.
    `common`: the noise of A1 is subtracted. `own`: a noise of the same size, but another one.
    """
    known = truth()
    first, second = (np.exp(rng.normal(size=(B, H, 1, T))) for _ in range(2))
    own = {"common": first * np.exp(0.1 * rng.normal(size=first.shape))}.get(kind, second)

    def weights(pattern: Any, relevant: float, irrelevant: float) -> Tensor:
        spread, total = torch.from_numpy(pattern), torch.zeros(B, H, 1, T).double()
        for where, mass in ((known.relevant, relevant), (known.irrelevant, irrelevant)):
            part = spread * where[:, None]
            total += mass * part / part.sum(-1, keepdim=True)
        total[..., 0] = 1 - relevant - irrelevant
        return total

    if kind == "sharp":
        on_relevant, noise = 1.9 * on_relevant, 0.05 * noise
    lam = torch.full((B, H, 1, 1), 0.5 if kind in ("common", "own") else 0.0)
    even = np.exp(0.1 * rng.normal(size=first.shape))  # on R both maps are even, and unrelated
    on_r = known.relevant[:, None].numpy()
    A1 = weights(np.where(on_r, even, first), on_relevant, noise)
    even = np.exp(0.1 * rng.normal(size=first.shape))
    A2 = weights(np.where(on_r, even, own), 0.4 * on_relevant, 1.75 * noise)
    return LayerMaps(A1, A1 - lam * A2, A2, lam)


def maps(world: World, model: TrainedModel, split: str) -> MapsOnTask:
    rng = generator(model.arm, model.run.recipe.seed, split)
    is_v1 = model.arm == "V1"
    kinds = (world.retrieving, world.elsewhere) if is_v1 else ("plain", "plain")
    noise = 0.4 if is_v1 else world.noise
    layers = []
    for retrieves in RETRIEVING:
        where = retrieves[None, :, None, None]
        one, other = (
            row_maps(kind, mass, noise, rng)
            for kind, mass in zip(kinds, (min(0.5, 0.95 - noise), 0.02), strict=True)
        )
        names = ("signal", "difference", "noise", "lam")
        layers.append(
            LayerMaps(*(torch.where(where, getattr(one, n), getattr(other, n)) for n in names))
        )
    known = truth()
    return MapsOnTask(CapturedMaps(layers, known.rows, torch.empty(0)), known, torch.zeros(B, T))


def logit_change(
    net: Any, ids: Tensor, known: GroundTruth, edit: Any, layer: int, heads: Tensor | None = None
) -> Tensor:
    name = next(name for name, known_edit in e15_layers.EDITS.items() if known_edit is edit)
    drops = np.array(net.world.drop.get(name, np.zeros((LAYERS, H))))[layer]
    fall = drops.sum() if heads is None else drops[heads.numpy()].sum()
    return torch.full((B, 1), float(fall)) + 0.02 * generator(net.model.run.key, layer).normal()


def complete_maps(world: World, model: TrainedModel) -> list[LayerMaps]:
    scores = generator(model.run.key).normal(size=(4, 2, 24 if world.full_rank else 1, 24))
    A2 = torch.from_numpy(3 * scores).softmax(-1).expand(4, 2, 24, 24)
    return [LayerMaps(A2, A2, A2, torch.ones(4, 2, 24, 1))]


def measure(number: int, world: World, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Return the result of a test on models with planted answers and maps."""
    planted_maps = cache(lambda model, split: maps(world, model, split))
    patches = {
        (model_measurements, "_answers"): lambda model, c, size: answers(world, model, c),
        (model_measurements, "_accuracy_of_all_questions"): lambda model, c, size: (
            answers(world, model, c).correct
        ),
        (model_measurements, "_maps_on_task"): lambda model, c, step, split, n: planted_maps(
            model, split
        ),
        (TrainedModel, "load"): lambda model, step=None: SimpleNamespace(
            config=config(model.run.recipe.attention), world=world, model=model
        ),
        (flow, "logit_change"): logit_change,
        (e15_layers, "residual_cosine"): lambda net, ids: torch.zeros(LAYERS, B, T),
        (e13_cheap_noise, "complete_maps"): lambda model: complete_maps(world, model),
    }
    for (where, name), planted in patches.items():
        monkeypatch.setattr(where, name, planted)
    entry = EXPERIMENTS[number]
    test = entry.load()
    folder = Path(f"planted-{next(folders)}")
    models = TrainedModels(
        {
            arm.name: [TrainedModel(arm.name, small_run(arm, seed), folder) for seed in SEEDS]
            for arm in test.arms
        }
    )
    found = test.measure(models)
    require_measured(str(number), test.predictions, found.effects)
    effects = {effect: seed_interval(values) for effect, values in found.effects.items()}
    return Result(
        number,
        entry.title,
        entry.question,
        list(test.predictions),
        effects,
        found.tables,
        found.figures,
        found.notes,
        {arm.name: "" for arm in test.arms},
        "planted",
        list(SEEDS),
    )


@pytest.fixture
def measured(monkeypatch) -> Callable[[int, World], Result]:
    """Return a function from the number of a test and a world to the test's result."""
    return partial(measure, monkeypatch=monkeypatch)


def verdicts(result: Result, expected: dict[str, Verdict]) -> dict[str, Verdict | None]:
    return {reading: result.about(reading) for reading in expected}


BETTER, WORSE = 0.85, 0.55  # than 0.7, which all arms have by default


@pytest.mark.parametrize(
    ("number", "stress", "expected"),
    [
        (4, {"top-k": BETTER}, {"sparsity": S, "cancelling": R}),
        (4, {}, {"sparsity": S, "cancelling": R}),  # a precise null refutes `more`
        (4, {"top-k": WORSE}, {"sparsity": R, "cancelling": S}),
        (6, {}, {"cancelling": R, "sparsity": S, "unchaining": R}),
        (6, {"foreign noise": WORSE}, {"cancelling": S, "sparsity": S, "unchaining": R}),
        (6, {"foreign noise": BETTER}, {"cancelling": R}),
        (6, {"simplex": WORSE}, {"cancelling": R, "sparsity": R, "unchaining": S}),
        (6, {"simplex": BETTER}, {"sparsity": S, "unchaining": R}),
        (8, {}, {"cancelling": R, "unchaining": R}),
        (8, {"V1": BETTER, "V1 without head norm": BETTER}, {"cancelling": S, "unchaining": S}),
        (8, {"V1": BETTER, "standard + head norm": BETTER}, {"cancelling": R, "unchaining": R}),
        (8, {"V1": BETTER}, {"cancelling": S, "unchaining": R}),  # 0.075 on average
        (8, {"V1": BETTER, "V1 without head norm": WORSE}, {"cancelling": R, "unchaining": R}),
        (12, {"gated": BETTER}, {"unchaining": S, "cancelling": R}),
        (12, {}, {"unchaining": S, "cancelling": R}),
        (12, {"gated": WORSE}, {"unchaining": R, "cancelling": S}),
        (13, {"low-rank noise": BETTER}, {"unchaining": S}),
        (13, {}, {"unchaining": S}),
        (13, {"low-rank noise": WORSE}, {"unchaining": R}),
    ],
)
def test_contests(number, stress, expected, measured):
    assert verdicts(measured(number, World(stress=stress)), expected) == expected


@pytest.mark.parametrize("number", [4, 6, 8, 12, 13])
def test_every_contest_follows_its_two_arms(number, measured):
    """Better, same, worse; not learned by either; no room: each prediction about two arms."""
    test = EXPERIMENTS[number].load()
    kinds = {"more": (S, R, R), "no worse": (S, S, R)}
    contests = [
        i
        for i, p in enumerate(test.predictions)
        if p.effect in {gain_of(a, b) for a in test.arms for b in test.arms}
    ]
    assert contests
    for i in contests:
        p = test.predictions[i]
        one, other = p.effect.arm, p.effect.versus

        def judged(i=i, **world):
            return measured(number, World(**world)).judgements()[i]

        levels = (BETTER, 0.7, WORSE)
        found = [judged(stress={one: level}).verdict for level in levels]
        assert found == list(kinds[p.kind]), (one, other)
        for arm in (one, other):
            unlearned = judged(learned={arm: 0.6})
            assert unlearned.verdict is I
            assert f"learned FAILED: accuracy: {arm}, as trained = 0.6" in str(unlearned.failed[0])
        # a gain needs room above the other arm; no worse needs a task that is hard for standard
        baseline = other if p.kind == "more" else "standard"
        full = judged(stress={one: 0.95, baseline: 0.95})
        assert full.verdict is I
        assert f"room FAILED: 1 - accuracy: {baseline}" in str(full.failed[0])


def test_one_unlearned_control_does_not_void_the_others(measured):
    result = measured(6, World(learned={"signed mask": 0.3}, stress={"foreign noise": WORSE}))
    about_mask = {
        judgement.verdict
        for p, judgement in zip(result.predictions, result.judgements(), strict=True)
        if "signed mask" in (p.effect.arm, p.effect.versus)
    }
    assert about_mask == {I}
    assert verdicts(result, {"cancelling": S, "sparsity": S}) == {"cancelling": S, "sparsity": S}


@pytest.mark.parametrize(("full_rank", "verdict"), [(False, S), (True, R)])
def test_ranks(full_rank, verdict, measured):
    result = measured(13, World(full_rank=full_rank))
    about_rank = [
        judgement.verdict
        for p, judgement in zip(result.predictions, result.judgements(), strict=True)
        if "rank of A2" in p.effect.metric
    ]
    assert about_rank == [verdict]


FAR_1, FAR_2, NEAR_1, NEAR_2 = (1.0, "far"), (1.5, "far"), (1.0, "near"), (1.5, "near")


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        ({NEAR_1: 0.5, NEAR_2: 0.5}, [S, R, R]),  # cancelling; sparsity by length; and by noise
        ({FAR_2: 0.5, NEAR_2: 0.5}, [R, S, S]),
        ({NEAR_2: 0.5}, [S, S, R]),
        (dict.fromkeys(GRID, 0.5), [R, R, S]),  # a gain that grows with neither
        ({}, [R, R, S]),
        ({NEAR_1: -0.5, NEAR_2: -0.5}, [R, R, R]),
    ],
)
def test_grid(gain, expected, measured):
    judgements = measured(7, World(gain=gain)).judgements()
    assert [judgement.verdict for judgement in judgements] == expected


@pytest.mark.parametrize(
    ("retrieving", "elsewhere", "expected"),
    [
        ("common", "own", [S, S, S, R]),
        ("own", "own", [R, R, R, S]),
        ("own", "common", [R, R, R, S]),  # where heads do not retrieve, it does not count
    ],
)
def test_agreement(retrieving, elsewhere, expected, measured):
    result = measured(1, World(retrieving=retrieving, elsewhere=elsewhere))
    assert [judgement.verdict for judgement in result.judgements()] == expected
    by_layer = {row[0]: row[1:3] for row in result.tables[1].rows}
    assert by_layer["V1, layer 0"] == ["0 of 8", "no retrieval heads"]
    assert by_layer["V1, layer 1"][0] == "8 of 8"


@pytest.mark.parametrize(
    ("retrieving", "elsewhere", "expected"),
    [
        ("common", "plain", {"cancelling": S, "sparsity": S}),
        ("sharp", "plain", {"cancelling": R, "sparsity": S}),
        ("own", "plain", {"cancelling": R}),
        ("plain", "plain", {"cancelling": R, "sparsity": R}),
        ("plain", "common", {"cancelling": R, "sparsity": R}),
        ("plain", "sharp", {"cancelling": R, "sparsity": R}),
        ("plain", "own", {"cancelling": R, "sparsity": R}),
    ],
)
def test_sparsity(retrieving, elsewhere, expected, measured):
    result = measured(5, World(retrieving=retrieving, elsewhere=elsewhere))
    assert verdicts(result, expected) == expected


NOTHING = [0.0] * H
OTHER = e15_layers.OTHER_EXAMPLE
OUT = {"knocked out": [NOTHING, [1.0, 1.0, 0, 0]]}  # A2 matters in the heads that retrieve


@pytest.mark.parametrize(
    ("drop", "expected"),
    [
        ({OTHER: [NOTHING, [1.0, 1.0, 0, 0]], **OUT}, {"cancelling": S, "sparsity": R}),
        (OUT, {"cancelling": R, "sparsity": S, "unchaining": S}),
        ({OTHER: [NOTHING, [-1.0, -1.0, 0, 0]], **OUT}, {"cancelling": R, "sparsity": R}),
        # in heads and layers that do not retrieve
        ({OTHER: [[9.0] * H, [0, 0, 9.0, 9.0]], **OUT}, {"cancelling": R, "sparsity": S}),
        # where A2 does nothing, that another A2 changes nothing says nothing
        ({}, {"cancelling": R, "sparsity": I, "unchaining": R}),
        ({"knocked out": [[9.0] * H, [0, 0, 9.0, 9.0]]}, {"cancelling": R, "sparsity": I}),
        # all heads of the last layer against those of the first
        ({"knocked out": [NOTHING, [1.0] * H]}, {"cancelling": R, "unchaining": S}),
        ({"knocked out": [[1.0] * H, NOTHING]}, {"unchaining": R}),
    ],
)
def test_layers(drop, expected, measured):
    assert verdicts(measured(15, World(drop=drop)), expected) == expected


PRIMARY = (1, 4, 5, 6, 7, 8, 12, 13, 15)


@pytest.mark.parametrize("number", PRIMARY)
def test_an_arm_that_did_not_learn_voids_what_is_said_about_it(number, measured):
    result = measured(number, World(learned=dict.fromkeys(["V1", "V2"], 0.62)))
    for prediction, judgement in zip(result.predictions, result.judgements(), strict=True):
        arms = {gate.effect.arm for gate in prediction.gates if gate.kind == "learned"}
        assert arms
        assert (judgement.verdict is I) == bool(arms & {"V1", "V2"})
        if judgement.failed:
            assert "as trained = 0.62 (≥ 0.99)" in str(judgement.failed[0])


@pytest.mark.parametrize("noise", [0.02, 0.75])
@pytest.mark.parametrize("number", PRIMARY)
def test_without_attention_noise_tests_of_noise_do_not_speak(number, noise, measured):
    result = measured(number, World(noise=noise))
    gated = [any(g.kind == "noise" for g in p.gates) for p in result.predictions]
    assert any(gated) == (number in (1, 5, 7, 15))
    for judgement, is_gated in zip(result.judgements(), gated, strict=True):
        assert (judgement.verdict is I) == is_gated
        if is_gated:
            words = f"noise FAILED: mass on I, retrieval heads: standard, {STRESS.name} = {noise}"
            assert words in str(judgement.failed[0])


def test_without_room_in_the_loss_the_grid_does_not_speak(measured):
    for judgement in measured(7, World(loss=0.15)).judgements():
        assert judgement.verdict is I
        assert "room FAILED: loss: standard" in str(judgement.failed[0])
