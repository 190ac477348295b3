"""Before and after, and DEX against its controls, to look at."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from antiphase.analysis.before_after_table import measured
from antiphase.analysis.palette import COLOURS
from antiphase.analysis.statistics import Interval

SHARES = {"answer": "needle", "sink": "first token", "noise": "all else"}


def draw_change(results: dict[str, Any], path: Path) -> bool:
    """Draw needles by depth and attention by place, before and after; not without matplotlib."""
    plt = _matplotlib()
    if plt is None:
        return False
    sides = dict(zip(("before", "after"), measured(results), strict=True))
    depths = sorted(set(sides["before"].depth.tolist()))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for i, (name, m) in enumerate(sides.items()):
        look = {"color": COLOURS[i], "hatch": ("", "//")[i], "edgecolor": "white", "label": name}
        place = (i - 0.5) * 0.4
        found = [float(m.right[m.depth == d].mean()) for d in depths]
        left.bar(np.arange(len(depths)) + place, found, 0.4, **look)
        shares = [float(getattr(m, share).mean()) for share in SHARES]
        right.bar(np.arange(len(shares)) + place, shares, 0.4, **look)
    left.set_xticks(range(len(depths)), [f"{d:g}" for d in depths])
    left.set(title="Needles found, by depth", xlabel="0: start of the text", ylim=(0, 1.02))
    right.set_xticks(range(len(SHARES)), list(SHARES.values()))
    right.set_title("Where the answer's token looks")
    left.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


def draw_against(effects: dict[str, dict[str, Interval]], path: Path) -> bool:
    """Draw a point and an interval for DEX minus each control, a panel a measure."""
    plt = _matplotlib()
    if plt is None:
        return False
    figure, axes = plt.subplots(
        1, len(effects), figsize=(4 * len(effects), 2.8), layout="constrained", squeeze=False
    )
    for axis, (measure, by_control) in zip(axes[0], effects.items(), strict=True):
        for i, found in enumerate(by_control.values()):
            spread = [[found.mean - found.low], [found.high - found.mean]]
            axis.errorbar(found.mean, i, xerr=spread, fmt="o", color=COLOURS[0])
        axis.axvline(0, color="black", lw=1)
        axis.set_yticks(range(len(by_control)), list(by_control))
        axis.invert_yaxis()
        axis.set_title(f"{measure}: DEX minus control", fontsize=10)
        axis.grid(alpha=0.25)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


def _matplotlib() -> Any:
    if importlib.util.find_spec("matplotlib") is None:
        return None
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
