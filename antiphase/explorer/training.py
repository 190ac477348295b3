"""The training view: what a run has logged so far, and how its maps agree at its milestones."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from antiphase.analysis.capture import capture
from antiphase.analysis.ground_truth import ground_truth
from antiphase.analysis.metrics.cancellation import correlation
from antiphase.explorer.models import ExploredModel, ModelEntry, load_model
from antiphase.tasks import task as task_of
from antiphase.training import load_recipe, read_metrics
from antiphase.training.callbacks import METRICS

MAX_POINTS = 400  # of a series
AGREEMENT_SEQUENCES = 8
KEPT = 512  # milestones whose agreement is remembered
SERIES = ("loss", "held_out_loss", "held_out_accuracy", "grad_norm", "learning_rate")
Points = list[list[float]]


class TrainingView:
    """The runs of an explorer while they train and after."""

    def __init__(self) -> None:
        self._agreement: OrderedDict[tuple[str, int], list[float] | None] = OrderedDict()
        self._read: dict[str, tuple[tuple[float, int], dict[str, Points]]] = {}

    def run(
        self, entry: ModelEntry, superseded: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """Return the series of a run, and the agreement of its maps at milestones.

        The agreement of one milestone is computed per call, so that a page shows the others first.

        Args:
            entry: a model that has a run folder.
            superseded: whether a newer request has made this one useless.

        Raises:
            ValueError: the model has no run.
        """
        if entry.run is None:
            raise ValueError(f"{entry.title}: was not trained by a run, so there are no steps")
        milestones = list(entry.milestones())
        missing = [s for s in milestones if (entry.name, s) not in self._agreement]
        if missing and not superseded():
            self._agreement[entry.name, missing[0]] = agreement(load_model(entry, missing[0]))
            while len(self._agreement) > KEPT:
                self._agreement.popitem(last=False)
        found = {s: self._agreement.get((entry.name, s)) for s in milestones}
        by_step = {s: values for s, values in found.items() if values}
        layers = len(next(iter(by_step.values()), []))
        return {
            "name": entry.name,
            "title": entry.title,
            "steps": load_recipe(str(entry.run / "recipe.yaml")).steps,
            "finished": entry.finished,
            "milestones": milestones,
            "series": self._series(entry.run, entry.name),
            "agreement": {
                f"layer {i}": [[s, values[i]] for s, values in by_step.items()]
                for i in range(layers)
            },
            "complete": len(missing) <= 1,
        }

    def _series(self, folder: Path, name: str) -> dict[str, Points]:
        """Return the logged series by name, read again only if the file has changed."""
        path = folder / METRICS
        if not path.is_file():
            return {}
        about = path.stat()
        stamp = (about.st_mtime, about.st_size)
        if name not in self._read or self._read[name][0] != stamp:
            self._read[name] = (stamp, series(read_metrics(folder)))
        return self._read[name][1]


def series(lines: list[dict[str, Any]]) -> dict[str, Points]:
    """Return (step, value) of each series that a run logs, thinned to `MAX_POINTS`."""
    found: dict[str, Points] = {}
    for line in lines:
        for name, value in line.items():
            wanted = name in SERIES or name.startswith("lam_")
            if wanted and isinstance(value, int | float):
                found.setdefault(name, []).append([line["step"], float(value)])
    return {name: _thinned(points) for name, points in found.items()}


def _thinned(points: Points) -> Points:
    every = -(-len(points) // MAX_POINTS)
    kept = points[::every]
    return kept if kept[-1] is points[-1] else [*kept, points[-1]]


@torch.no_grad()
def agreement(explored: ExploredModel) -> list[float] | None:
    """Return the correlation of A1 and A2 on irrelevant tokens per layer, a mean over heads.

    Returns:
        None for models with one map per head, or without a synthetic task.
    """
    recipe = explored.recipe
    if recipe is None or recipe.task == "language" or not any(explored.noise_heads):
        return None
    data = task_of(recipe.task)(
        split="test", size=AGREEMENT_SEQUENCES, seed=recipe.seed, **recipe.task_options
    )
    examples = data.examples(range(AGREEMENT_SEQUENCES))
    truth = ground_truth(examples, last=1)
    maps = capture(explored.model, torch.from_numpy(examples.tokens), truth.rows)
    return [
        0.0
        if m.noise is None
        else float(correlation(m.signal, m.noise, truth.irrelevant).nanmean())
        for m in maps.layers
    ]
