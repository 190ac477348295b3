"""Plots of scores before and after training, and of arms against a baseline."""

from pathlib import Path
from typing import Any

import numpy as np

from antiphase.analysis.before_after_table import before_and_after
from antiphase.analysis.palette import COLOURS
from antiphase.analysis.statistics import Interval
from antiphase.training.run_card import pyplot

PLACES = {"answer": "needle", "sink": "first token", "noise": "irrelevant"}


def draw_change(results: dict[str, Any], path: Path) -> bool:
    """Draw needles found by depth and attention by place, before and after.

    Args:
        results: of one run.
        path: the PNG file to write.

    Returns:
        Whether it was drawn; not without matplotlib.
    """
    plt = pyplot()
    if plt is None:
        return False
    sides = dict(zip(("before", "after"), before_and_after(results), strict=True))
    depths = sorted(set(sides["before"].depth.tolist()))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for i, (name, scores) in enumerate(sides.items()):
        style = {"color": COLOURS[i], "hatch": ("", "//")[i], "edgecolor": "white", "label": name}
        offset = (i - 0.5) * 0.4
        found = [float(scores.correct[scores.depth == d].mean()) for d in depths]
        left.bar(np.arange(len(depths)) + offset, found, 0.4, **style)
        fractions = [float(getattr(scores, place).mean()) for place in PLACES]
        right.bar(np.arange(len(fractions)) + offset, fractions, 0.4, **style)
    left.set_xticks(range(len(depths)), [f"{d:g}" for d in depths])
    left.set(title="Needles found, by depth", xlabel="0: start of the sequence", ylim=(0, 1.02))
    right.set_xticks(range(len(PLACES)), list(PLACES.values()))
    right.set_title("Where the token before the answer attends")
    left.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


def draw_against(effects: dict[str, dict[str, Interval]], baseline: str, path: Path) -> bool:
    """Draw each arm minus a baseline as a point with an interval, one panel per measure.

    Args:
        effects: by measure, then by arm.
        baseline: its name.
        path: the PNG file to write.

    Returns:
        Whether it was drawn; not without matplotlib.
    """
    plt = pyplot()
    if plt is None:
        return False
    figure, axes = plt.subplots(
        1,
        len(effects),
        figsize=(4 * len(effects), 3.2),
        layout="constrained",
        squeeze=False,
        sharey=True,
    )
    for axis, (measure, by_arm) in zip(axes[0], effects.items(), strict=True):
        for i, effect in enumerate(by_arm.values()):
            error = [[effect.mean - effect.low], [effect.high - effect.mean]]
            axis.errorbar(effect.mean, i, xerr=error, fmt="o", color=COLOURS[0])
        axis.axvline(0, color="black", lw=1)
        axis.set_yticks(range(len(by_arm)), list(by_arm))
        axis.set_title(f"{measure}: minus {baseline}", fontsize=10)
        axis.grid(alpha=0.25)
    axes[0, 0].invert_yaxis()  # shared by all panels
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True
