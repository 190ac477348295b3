"""Picture of a nano study on text: attention that outgrows the stream early, and the final loss.

    python docs/ladder_early.py      # writes docs/results/ladder/nano/early.png

A dot is a run of the study: what attention adds to the residual stream at step 50, over what is in
it (RMS, mean over layers), and the held-out loss at the end. Both are in the study's results.
"""

from pathlib import Path

import matplotlib.pyplot as plt

from antiphase.analysis.statistics import Interval
from antiphase.experiments.e20_ladder import LOSS
from antiphase.experiments.experiment import Table
from antiphase.experiments.results import Study, load_study

FOLDER = Path(__file__).parent / "results" / "ladder" / "nano"
RATIO = "attention, step 50"


def points(study: Study) -> dict[str, list[tuple[float, float]]]:
    """Return ratio and loss of every run, by arm, in the order of seeds."""
    (branches,) = (table for table in study.training if RATIO in table.columns)
    of_test = {result.number: result.tables[0] for result in study.results if result.tables}
    losses = {**_by_seed(of_test[11], LOSS), **_by_seed(of_test[21], "loss")}
    ratios = _by_seed(branches, RATIO)
    return {arm: list(zip(ratios[arm], losses[arm], strict=True)) for arm in losses}


def _by_seed(table: Table, column: str) -> dict[str, tuple[float, ...]]:
    found = {}
    for row in table.rows:
        cell = row[table.columns.index(column)]
        assert isinstance(cell, Interval)
        assert cell.by_seed is not None
        found[str(row[0])] = cell.by_seed
    return found


def main() -> None:
    """Draw it."""
    figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for number, (arm, own) in enumerate(points(load_study(FOLDER)).items()):
        x, y = zip(*own, strict=True)
        axis.scatter(x, y, label=arm, color=f"C{number}", marker="ovs^DPX*"[number], s=45)
    axis.set_xscale("log")
    axis.set_xlabel("what attention adds to the stream at step 50, over what is in it (RMS)")
    axis.set_ylabel("held-out loss at the end, nats per token")
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8, frameon=False)
    figure.savefig(FOLDER / "early.png", dpi=130)


if __name__ == "__main__":
    main()
