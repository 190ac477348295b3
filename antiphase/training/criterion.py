"""Training to a criterion: the decay begins once the held-out accuracy has reached a value.

    warm-up | constant rate until the criterion | decay | end, before `steps`

The criterion is reached at the first of two evaluations in a row that are at or above it. A run
that has not reached it when the schedule would decay anyway is censored: it decays then, and ends
at `steps`.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from antiphase.training.checkpoints import read_json, write_atomic
from antiphase.training.recipe import Recipe
from antiphase.training.schedule import decay_start, warmup_steps

CRITERION = "criterion.json"  # in a finished run
STATE = "criterion_state.json"  # in a checkpoint


@dataclass(frozen=True)
class Criterion:
    """How a run to a criterion went.

    Attributes:
        criterion: the held-out accuracy to reach.
        reached: whether two evaluations in a row were at or above it before the decay; if not, the
            run is censored at `decay_from`.
        step: of the first of these two evaluations, None if it was not reached.
        decay_from: number of steps before the decay.
        end: number of steps of the run.
    """

    criterion: float
    reached: bool
    step: int | None
    decay_from: int
    end: int

    def __str__(self) -> str:
        goal = f"held-out accuracy {self.criterion:g}"
        how = f"reached at step {self.step}" if self.reached else "not reached"
        return f"{goal} {how}; decay from step {self.decay_from}, end at step {self.end}"


def criterion_of(folder: Path | str) -> Criterion | None:
    """Return how a run to a criterion went.

    Args:
        folder: of the run.

    Returns:
        None if the run has not finished, or has no criterion.

    Raises:
        ValueError: the file cannot be read.
    """
    path = Path(folder) / CRITERION
    return Criterion(**read_json(path)) if path.is_file() else None


class CriterionTracker:
    """Follows the held-out accuracy of a run, and knows when the run decays and ends.

    Without a criterion, the run decays by its schedule and ends at `steps`.

    Attributes:
        step: of the first evaluation of the two that reached the criterion.
        decay_from: step at which the decay begins early.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.step: int | None = None
        self.decay_from: int | None = None
        self._candidate: int | None = None  # the last evaluation, if it was at the criterion

    @property
    def end(self) -> int:
        """Return the number of steps of the run, as far as it is known."""
        if self.decay_from is None:
            return self.recipe.steps
        return self.decay_from + self.recipe.steps - decay_start(self.recipe)

    def record(self, step: int, scores: dict[str, float]) -> bool:
        """Take the scores of an evaluation; return whether it is the one that begins the decay."""
        goal, latest = self.recipe.criterion, decay_start(self.recipe)
        if goal is None or self.decay_from is not None or step > latest:
            return False
        before = self._candidate
        self._candidate = step if scores["accuracy"] >= goal else None
        if before is None or self._candidate is None:
            return False
        self.step = before
        self.decay_from = min(max(step, warmup_steps(self.recipe)), latest)
        return True

    def outcome(self) -> Criterion:
        """Return how the run went, at its end."""
        assert self.recipe.criterion is not None
        start = decay_start(self.recipe) if self.decay_from is None else self.decay_from
        reached = self.step is not None
        return Criterion(self.recipe.criterion, reached, self.step, start, self.end)

    def save_state(self, checkpoint: Path) -> None:
        """Write the state into a checkpoint, so that a resumed run decays and ends equally."""
        state = {"step": self.step, "decay_from": self.decay_from, "candidate": self._candidate}
        (checkpoint / STATE).write_text(json.dumps(state))

    def load_state(self, checkpoint: Path) -> None:
        """Read the state of a checkpoint."""
        state: dict[str, Any] = read_json(checkpoint / STATE)
        self.step, self.decay_from = state["step"], state["decay_from"]
        self._candidate = state["candidate"]

    def write_outcome(self, folder: Path) -> None:
        """Write how the run went into its folder."""
        write_atomic(folder / CRITERION, json.dumps(asdict(self.outcome()), indent=1))
