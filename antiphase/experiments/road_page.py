"""The page and the picture of the road: accuracy by task, then speed and memory by length."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from antiphase.analysis.palette import COLOURS, MATPLOTLIB_LINES, MATPLOTLIB_MARKERS, style
from antiphase.analysis.statistics import student_t
from antiphase.experiments.road import TASKS, RoadResult, as_json, from_json
from antiphase.markdown import markdown_table
from antiphase.training.checkpoints import write_atomic
from antiphase.training.provenance import environment

RESULTS, PAGE, PICTURE = "road.json", "road.md", "road.png"
ZOOLOGY = (
    "On multi-query recall with a vocabulary of 8192, two layers and the best of four rates, "
    "zoology reports this order: attention solves every setting; gated linear forms with enough "
    "state are near 0.95; Mamba has 0.83 to 0.85; plain linear attention and Hyena are far below "
    "at small width. Recurrent networks are limited by the size of their state."
)


@dataclass(frozen=True)
class RoadCost:
    """What a mixer costs at one length.

    Attributes:
        arm: name of the mixer.
        length: tokens in a sequence.
        tokens_per_second: of training steps.
        training_bytes: what a training step keeps for the backward pass, per sequence.
        decoding_bytes: cache and state after so many tokens, per sequence.
    """

    arm: str
    length: int
    tokens_per_second: float
    training_bytes: float
    decoding_bytes: int


def write_road(
    results: Sequence[RoadResult], costs: Sequence[RoadCost], folder: Path
) -> tuple[Path, Path]:
    """Write numbers, page and picture into the folder of the study.

    Returns:
        The paths of page and picture.
    """
    stored = {
        "environment": environment(),
        "tasks": {name: recipe.as_dict() for name, recipe in TASKS.items()},
        "results": as_json(results),
        "costs": [asdict(cost) for cost in costs],
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / RESULTS, json.dumps(stored, indent=1))
    return write_road_page(folder, folder)


def write_road_page(study: Path, folder: Path) -> tuple[Path, Path]:
    """Write page and picture of stored numbers.

    Args:
        study: folder with `road.json`.
        folder: of the page.

    Returns:
        The paths of page and picture.
    """
    stored = json.loads((study / RESULTS).read_text())
    results = from_json(stored["results"])
    costs = [RoadCost(**fields) for fields in stored["costs"]]
    folder.mkdir(parents=True, exist_ok=True)
    _draw(results, costs, folder / PICTURE)
    write_atomic(folder / PAGE, _page(stored, results, costs))
    return folder / PAGE, folder / PICTURE


def _page(stored: dict[str, Any], results: list[RoadResult], costs: list[RoadCost]) -> str:
    machine, first = stored["environment"], results[0]
    return "\n".join(
        [
            "# The road: from recurrent networks to differential attention",
            "",
            "One model of two layers and about equal parameters; only the mixer of tokens changes. "
            f"Every mixer was trained at {len(first.rates)} learning rates "
            f"({', '.join(f'{lr:g}' for lr in first.rates)}) on one seed, then at the best one "
            f"with {len(first.accuracy)} others. The outcome is the accuracy on new sequences; "
            "an arm that did not learn counts with what it has.",
            "",
            "```",
            "antiphase lab --road --out runs/lab-road      # runs what is missing",
            "```",
            "",
            f"![Accuracy, speed and memory of the mixers]({PICTURE})",
            "",
            "## Accuracy",
            "",
            markdown_table(["", *_tasks(results)], _accuracy_rows(results)),
            "",
            "Mean over seeds [95% interval of Student's t, cut at 0 and 1], then the number of "
            "seeds that held 0.99 at two evaluations in a row before their rate decayed. A model "
            "that guesses among the values of a sequence has 0.25 with 4 pairs or needles, 0.125 "
            "with 8 pairs.",
            "",
            ZOOLOGY,
            "",
            "## Tasks and budget",
            "",
            markdown_table(*_task_table(stored["tasks"])),
            "",
            "Two layers of width 128, 8 heads of standard attention (threshold: 4, since in heads "
            "of width 16 most rows of a new model are dead), default branch scale, no dropout in "
            "any arm. Recall has three queries per pair, drawn with replacement. The budget is "
            "small: that an arm did not learn here says nothing about longer training, and does "
            "not tell a state that is too small from a circuit that forms late. `linear` has no "
            "information about positions. All arms have the same four rates; recurrent models "
            "often need rates closer to each other.",
            "",
            "## Rates",
            "",
            markdown_table(["", *_tasks(results)], _rate_rows(results)),
            "",
            "The rate with the lowest held-out loss of its tuning run; * marks the lowest and the "
            "highest rate that was tried, beyond which there may be a better one.",
            "",
            "## Speed and memory",
            "",
            markdown_table(*_cost_table(costs)),
            "",
            "Training tokens per second of CPU time (one thread, one sequence, forward and "
            "backward pass); in brackets, what a training step keeps for the backward pass, and "
            "cache and state after decoding that many tokens, in MB per sequence.",
            "",
            f"{machine['cores']} cores of {machine['cpu']}, torch {machine['torch']}, "
            f"antiphase {machine['antiphase']}. `{RESULTS}` has the values by seed.",
            "",
        ]
    )


def _task_table(tasks: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return what the models of each task were trained on, and for how long at most."""
    columns = ["", "options", "batch", "steps at most", "tokens at most"]
    rows = []
    for name, recipe in tasks.items():
        options = recipe["task_options"]
        tokens = recipe["steps"] * recipe["batch_size"] * options["length"]
        settings = ", ".join(f"{key} {value}" for key, value in options.items())
        rows.append(
            [name, settings, str(recipe["batch_size"]), str(recipe["steps"]), f"{tokens:,}"]
        )
    return columns, rows


def _tasks(results: Sequence[RoadResult]) -> list[str]:
    return list(dict.fromkeys(r.task for r in results))


def _arms(results: Sequence[RoadResult] | Sequence[RoadCost]) -> list[str]:
    return list(dict.fromkeys(r.arm for r in results))


def _find(results: Sequence[RoadResult], arm: str, task: str) -> RoadResult | None:
    return next((r for r in results if r.arm == arm and r.task == task), None)


def _accuracy_rows(results: Sequence[RoadResult]) -> list[list[str]]:
    return [
        [arm, *(_accuracy_cell(_find(results, arm, task)) for task in _tasks(results))]
        for arm in _arms(results)
    ]


def _accuracy_cell(result: RoadResult | None) -> str:
    if result is None:
        return "failed"
    over = student_t(result.accuracy)
    learned = sum(step is not None for step in result.steps)
    low, high = max(over.low, 0.0), min(over.high, 1.0)
    return f"{over.mean:.3f} [{low:.3f}, {high:.3f}], {learned} of {len(result.steps)}"


def _rate_rows(results: Sequence[RoadResult]) -> list[list[str]]:
    def cell(result: RoadResult | None) -> str:
        if result is None:
            return "failed"
        return f"{result.lr:g}" + (
            "*" if result.lr in (min(result.rates), max(result.rates)) else ""
        )

    return [
        [arm, *(cell(_find(results, arm, task)) for task in _tasks(results))]
        for arm in _arms(results)
    ]


def _cost_table(costs: Sequence[RoadCost]) -> tuple[list[str], list[list[str]]]:
    lengths = sorted({cost.length for cost in costs})
    by_place = {(cost.arm, cost.length): cost for cost in costs}
    rows = [
        [arm, *(_cost_cell(by_place[arm, length]) for length in lengths)] for arm in _arms(costs)
    ]
    return ["", *(f"{length} tokens" for length in lengths)], rows


def _cost_cell(cost: RoadCost) -> str:
    training, decoding = cost.training_bytes / 1e6, cost.decoding_bytes / 1e6
    return f"{cost.tokens_per_second:,.0f} ({training:.1f}, {decoding:.3f})"


def _draw(results: Sequence[RoadResult], costs: Sequence[RoadCost], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(10, 8.5), layout="constrained")
    upper, lower = figure.subfigures(2, 1)
    _draw_accuracy(upper.subplots(), results)
    panels = lower.subplots(1, 3)
    measures: tuple[tuple[str, Callable[[RoadCost], float]], ...] = (
        ("training tokens/s", lambda c: c.tokens_per_second),
        ("kept for backward, MB", lambda c: c.training_bytes / 1e6),
        ("cache and state, kB", lambda c: c.decoding_bytes / 1e3),
    )
    for axis, (name, value) in zip(panels, measures, strict=True):
        for i, arm in enumerate(_arms(costs)):
            mine = sorted((c for c in costs if c.arm == arm), key=lambda c: c.length)
            axis.plot(
                [c.length for c in mine],
                [value(c) for c in mine],
                color=style(COLOURS, i),
                marker=style(MATPLOTLIB_MARKERS, i),
                linestyle=style(MATPLOTLIB_LINES, i // len(COLOURS)),
                markersize=4,
                label=arm,
            )
        axis.set(xscale="log", yscale="log", xlabel="tokens in a sequence", title=name)
        axis.grid(alpha=0.3)
    lower.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_accuracy(axis: Any, results: Sequence[RoadResult]) -> None:
    tasks, arms = _tasks(results), _arms(results)
    width = 0.8 / max(len(tasks), 1)
    for i, task in enumerate(tasks):
        for j, arm in enumerate(arms):
            result = _find(results, arm, task)
            if result is None:
                continue
            x = j + (i - (len(tasks) - 1) / 2) * width
            mean = sum(result.accuracy) / len(result.accuracy)
            axis.bar(x, mean, 0.9 * width, color=style(COLOURS, i), label=task if j == 0 else None)
            axis.plot([x] * len(result.accuracy), result.accuracy, "k.", markersize=3)
    axis.set_xticks(range(len(arms)), [arm.replace(" ", "\n", 1) for arm in arms], fontsize=8)
    axis.set(ylim=(0, 1.05), ylabel="accuracy", title="Accuracy; dots are seeds")
    axis.legend(loc="upper left", fontsize=8)
