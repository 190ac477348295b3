"""The predictions on the page are what the command prints."""

from antiphase.benchmarks import roofline
from tests.docs.pages import text


def test_the_committed_table_is_current():
    page = text("docs/results/gpu-roofline.md")
    for row in roofline.table(roofline.Shape()):
        assert f"| {' | '.join(row)} |" in page, "run antiphase bench gpu-roofline"


def test_the_figures_of_narrow_heads_are_current():
    rows = {tuple(row[:2]): row[4] for row in roofline.table(roofline.Shape(width=64))}
    fused = roofline.FUSED.name
    assert [rows[workload, fused].split(" (")[0] for workload in ("prefill", "training")] == [
        "1.00 / 1.15",
        "1.50 / 1.47",
    ]
    assert "fused prefill 1.00 / 1.15, training 1.50 / 1.47" in text("docs/results/gpu-roofline.md")
