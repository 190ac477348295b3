"""Models whose answers, maps and losses are planted by arm, with a little noise by seed."""

import itertools
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
from antiphase.experiments import (
    e02_fixed_lambda,
    e03_gradients,
    e13_cheap_noise,
    e15_layers,
    model_measurements,
)
from antiphase.experiments.conditions import AS_TRAINED, Cell, Condition
from antiphase.experiments.e23_full_grid import AXES
from antiphase.experiments.model_measurements import Answers, MapsOnTask
from antiphase.experiments.registry import EXPERIMENTS
from antiphase.experiments.results import Result
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from antiphase.experiments.verdicts import Verdict, require_measured
from antiphase.models import preset
from antiphase.models.summary import Summary, summarise
from tests.experiments.small import small_run

SEEDS, EXAMPLES = range(8), 500
B, H, T, LAYERS = 48, 4, 48, 2
RETRIEVING = torch.tensor([[False] * 4, [True, True, False, False]])  # by layer and head
CELLS = {condition: cell for cell, condition in AXES.cells.items()}
LAMBDAS = {"lam_0": 0.2, "lam_1": 0.4}
EMPTY = (torch.empty(0), torch.empty(0))
S, R, I = Verdict.SUPPORTED, Verdict.REFUTED, Verdict.INVALID  # noqa: E741
folders = itertools.count()  # measurements are cached by model: a new world has new models


@dataclass(frozen=True)
class World:
    """What is planted, by name of the arm; an arm that is not named has the default.

    Attributes:
        learned: accuracy as trained, else 0.999.
        stress: accuracy elsewhere, else 0.7.
        at: accuracy by arm and name of the condition, before `stress`.
        loss: standard's loss on answers.
        slope: how much higher all losses are if all distractors are near, or at twice the length.
        gain: how much lower V1's loss is than standard's, by cell of the grid, else 0.
        gains: the same of other arms.
        hallucinated: fraction of unanswerable questions with an answer at equal refusals, else 0.4.
        caution: how much an arm prefers to refuse any question, else 0.
        noise: mass of standard's retrieval heads on I.
        retrieving: kind of V1's maps in retrieval heads; one of the kinds of `row_maps`.
        elsewhere: kind of V1's maps in the other heads.
        before: kind of V1's maps at the start of training, in retrieval heads.
        maps_of: kind of other arms' maps in retrieval heads, else plain.
        drop: fall of the answer's logit by edit of a head's noise map, [layer, head]; else 0.
        full_rank: arms whose noise maps have full rank, rather than rank 1.
    """

    learned: dict[str, float] = field(default_factory=dict)
    stress: dict[str, float] = field(default_factory=dict)
    at: dict[tuple[str, str], float] = field(default_factory=dict)
    loss: float = 1.0
    slope: float = 0.0
    gain: dict[Cell, float] = field(default_factory=dict)
    gains: dict[str, dict[Cell, float]] = field(default_factory=dict)
    hallucinated: dict[str, float] = field(default_factory=dict)
    caution: dict[str, float] = field(default_factory=dict)
    noise: float = 0.4
    retrieving: str = "plain"
    elsewhere: str = "plain"
    before: str = "plain"
    maps_of: dict[str, str] = field(default_factory=dict)
    drop: dict[str, list[list[float]]] = field(default_factory=dict)
    full_rank: tuple[str, ...] = ()


config = cache(partial(preset, "nano"))


@cache
def summary(attention: str, context: int) -> Summary:
    """Return a model's costs, which do not depend on what is planted."""
    return summarise(config(attention), context, torch.float32)


def generator(*names: object) -> np.random.Generator:
    return np.random.default_rng([crc32(str(name).encode()) for name in names])


def answers(world: World, model: TrainedModel, condition: Condition) -> Answers:
    jitter = 0.005 * generator(model.arm, model.run.recipe.seed, condition.name).normal()
    correct = world.learned.get(model.arm, 0.999)
    if condition != AS_TRAINED:
        usual = world.stress.get(model.arm, 0.7)
        correct = world.at.get((model.arm, condition.name), usual) + jitter
    slope = world.slope * (condition.near + max(condition.length - 1, 0))
    gains = {"V1": world.gain, **world.gains}.get(model.arm, {})
    gain = gains.get(CELLS[condition], 0.0) if condition in CELLS else 0.0
    return Answers(
        (np.arange(EXAMPLES) < round(correct * EXAMPLES)).astype(float),
        np.full(EXAMPLES, world.loss + slope - gain + jitter),
        *(refusals(world, model, jitter) if model.run.recipe.task == "unanswerable" else EMPTY),
    )


def refusals(world: World, model: TrainedModel, jitter: float) -> tuple[Tensor, Tensor]:
    """Return logits and targets: half of the questions, answered with token 0, are answerable.

    A model is sure of what it knows: its preference for the refusal is -4 for answerable questions
    (a little more or less), -6 for those that it does not recognise as unanswerable, else 6.
    """
    refusal, n = model.held_out(1).refusal, EXAMPLES // 2
    fooled = max(0, round((world.hallucinated.get(model.arm, 0.4) + jitter) * n))
    preference = torch.cat(
        [torch.linspace(-4.5, -3.5, n), torch.full((fooled,), -6.0), torch.full((n - fooled,), 6.0)]
    )
    logits = torch.zeros(2 * n, refusal + 1)
    logits[:, 0] = 9.0
    logits[:, refusal] = 9.0 + preference + world.caution.get(model.arm, 0.0)
    return logits, torch.tensor([0] * n + [refusal] * n)


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


def maps(world: World, model: TrainedModel, split: str, step: int | None) -> MapsOnTask:
    rng = generator(model.arm, model.run.recipe.seed, split)
    is_v1 = model.arm == "V1"
    kinds = (world.maps_of.get(model.arm, "plain"), "plain")
    if is_v1:
        kinds = (world.retrieving if step is None else world.before, world.elsewhere)
    noise = 0.4 if is_v1 else world.noise
    layers = []
    for retrieves in RETRIEVING:
        where = retrieves[None, :, None, None]
        one, other = (
            row_maps(kind, mass, noise, rng)
            for kind, mass in zip(kinds, (min(0.5, 0.95 - noise), 0.02), strict=True)
        )
        names = ("signal", "difference", "noise", "lam")
        kept = LayerMaps(*(torch.where(where, getattr(one, n), getattr(other, n)) for n in names))
        kept.values = torch.eye(T).expand(B, H, T, T)  # every token has a direction of its own
        layers.append(kept)
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
    patterns = 48 if model.arm in world.full_rank else 1
    scores = generator(model.run.key).normal(size=(2, 1, patterns, 48))
    A2 = torch.from_numpy(3 * scores).softmax(-1).expand(2, 1, 48, 48)
    return [LayerMaps(A2, A2, A2, torch.ones(2, 1, 48, 1))]


def measure(number: int, world: World, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Return the result of a test on models with planted answers and maps."""
    planted_maps = cache(partial(maps, world))
    patches = {
        (model_measurements, "_answers"): lambda model, c, size, split: answers(world, model, c),
        (model_measurements, "_calibrated_loss"): lambda model, c: answers(world, model, c).loss,
        (model_measurements, "_accuracy_of_all_questions"): lambda model, c, size: (
            answers(world, model, c).correct
        ),
        (model_measurements, "_maps_on_task"): lambda model, c, step, split, n: planted_maps(
            model, split, step
        ),
        (TrainedModel, "milestones"): lambda model: model.run.recipe.milestones,
        (e02_fixed_lambda, "lambdas"): lambda net: LAMBDAS,
        (e03_gradients, "read_metrics"): lambda folder: [{"step": 4, "grad_norm": 1.0}],
        (e03_gradients, "_cosines"): lambda model, step: {"q": 0.1, "k": 0.1},
        (e03_gradients, "_hessian"): lambda model, step: (2.0, -1.0),
        (TrainedModel, "load"): lambda model, step=None: SimpleNamespace(
            config=config(model.run.recipe.attention), world=world, model=model
        ),
        (TrainedModel, "config"): property(lambda model: config(model.run.recipe.attention)),
        (flow, "logit_change"): logit_change,
        (e15_layers, "residual_cosine"): lambda net, ids: torch.zeros(LAYERS, B, T),
        (e13_cheap_noise, "summarise"): lambda config, context, dtype: summary(
            config.attention, context
        ),
        (e13_cheap_noise, "complete_maps"): cache(partial(complete_maps, world)),
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


def verdicts(result: Result, expected: dict[str, Verdict]) -> dict[str, Verdict | None]:
    return {reading: result.about(reading) for reading in expected}
