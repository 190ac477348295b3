"""Benchmark tables keep every digit at 80 columns."""

import io

import pytest
from rich.console import Console

from antiphase.benchmarks import report
from antiphase.benchmarks.adapter import AdapterCost
from antiphase.benchmarks.attention import (
    FUSED,
    PYTHON,
    STANDARD,
    AttentionSetting,
    Cell,
    Row,
)
from antiphase.benchmarks.attention_cases import Case
from antiphase.benchmarks.interface import InterfaceCost
from antiphase.benchmarks.model import ACCELERATED, BASELINE, Comparison, Entry
from antiphase.benchmarks.timing import Ratio
from antiphase.benchmarks.training import TrainingCost

RATIO = Ratio(12.34, 11.22, 13.57)


def cell() -> Cell:
    setting = AttentionSetting("fp32", 131072, 64)
    rows = [
        Row(name, RATIO, Ratio(12.35, 1, 2), Ratio(12.36, 1, 2), 98765.4, 4321, 54321e6, backward)
        for backward in (False, True)
        for name in (STANDARD, FUSED, PYTHON)
    ]
    return Cell(setting, 4821.0, rows)


def case() -> Case:
    setting = AttentionSetting("fp32", 131072, 64)
    return Case(
        setting=setting,
        rows="window",
        name="window of 1024 and the first 4 keys",
        baseline="no window, in proportion to what is visible",
        share=0.1,
        backward=True,
        wall=RATIO,
        cpu=Ratio(12.35, 1, 2),
        milliseconds=98765.4,
        baseline_milliseconds=87654.3,
        peak_bytes=54_321_000_000,
        baseline_peak_bytes=43_210_000_000,
    )


def comparison() -> Comparison:
    entries = [
        Entry(name, 1_234_000_000, Ratio(12.38, 1, 2), RATIO, Ratio(0.05, 1, 2), 12345.67)
        for name in (BASELINE, ACCELERATED)
    ]
    return Comparison("decoding 256 tokens after 2048", entries)


TABLES = {
    "cell": (
        lambda: report.cell_table(cell()),
        [
            "12.34 (11.22-13.57)",
            "12.35",
            "12.36",
            "98765.4",
            "4321",
            "90%",
            "54321",
            *PYTHON.split(),
        ],
    ),
    "case": (
        lambda: report.case_table([case()]),
        ["12.34 (11.22-13.57)", "12.35", "98765.4", "87654.3", "54321", "43210", "to no window"],
    ),
    "comparison": (
        lambda: report.comparison_table(comparison()),
        ["12.34 (11.22-13.57)", "12.38", "20.00", "12345.67", "1.23e+03M", *ACCELERATED.split()],
    ),
    "training": (
        lambda: report.training_table(TrainingCost({"run": 1234567.0}, RATIO, RATIO, RATIO)),
        ["1,234,567", "12.340 (11.220-13.570)", "12.34000"],
    ),
    "adapter": (
        lambda: report.adapter_table([AdapterCost("adapter", RATIO, RATIO, 0.001)], 256),
        ["256000.0", "12.340 (11.220-13.570)"],
    ),
    "interface": (
        lambda: report.interface_table(
            [InterfaceCost("training step", "antiphase", RATIO, RATIO, 123.4567)]
        ),
        ["training step", "antiphase", "123.457", "12.34 (11.22-13.57)"],
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_keep_their_digits_at_80_columns(name: str):
    table, expected = TABLES[name]
    console = Console(file=io.StringIO(), width=80)
    console.print(table())
    text = console.file.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for cell_text in expected:
        assert cell_text in text
