"""What commands print: tables that fit, quiet and JSON output."""

import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from antiphase.cli import doctor
from antiphase.cli.output import Output, records
from antiphase.cli.table_layout import fit
from antiphase.experiments.train_all import train_all
from antiphase.models.locate import shipped_models
from antiphase.training.progress import Progress
from tests.cli.runner import invoke


def printed(table: Table, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    for block in fit(table, console):
        console.print(block)
    return console.file.getvalue()


def numeric(columns: int, rows: int = 3) -> tuple[Table, list[str]]:
    table = Table("metric", title="a title")
    cells = []
    for i in range(columns):
        table.add_column(f"column_{i}", justify="right")
    for row in range(rows):
        values = [f"0.00{row}{i:02}123 ± 0.0{i:02}" for i in range(columns)]
        table.add_row(f"row {row}", *values)
        cells += values
    return table, cells


@settings(deadline=None, max_examples=40)
@given(columns=st.integers(1, 12), width=st.integers(40, 200))
def test_no_digit_is_lost_at_any_width(columns, width):
    table, cells = numeric(columns)
    text = printed(table, width)
    for cell in cells:
        mean, interval = cell.split(" ± ")
        assert text.count(mean) == 1
        assert f"± {interval}" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def test_intervals_move_below_their_mean_where_that_saves_a_block():
    table = Table("claim", "predicts")
    table.add_column("measured", justify="right")
    table.add_column("verdict")
    table.add_row("1", "loss, dex minus kvo-only", "-8.48e-05 [-0.000356, 0.000157]", "supported")
    table.add_row("2", "needles found", "0 [0, 0]", "undecided")
    text = printed(table, 72)
    assert text.count("predicts") == text.count("verdict") == 1
    assert "-8.48e-05 [" not in text
    assert "[-0.000356, 0.000157]" in text
    assert "-8.48e-05 [-0.000356, 0.000157]" in printed(table, 200)


def test_blocks_repeat_the_first_column_and_the_title_once():
    table, _ = numeric(6)
    text = printed(table, 80)
    assert text.count("row 0") == text.count("metric") > 1
    assert text.count("a title") == 1
    assert printed(table, 1000).count("row 0") == 1


def test_text_is_wrapped_between_words_before_columns_are_split():
    table = Table("reading", "predicts", "measured", "verdict")
    words = "loss of held-out text, dex minus kvo-only: within 0.01"
    table.add_row("doubt", words, "0.0012 [-0.0034, 0.0058]", "✔ supported")
    text = printed(table, 80)
    assert text.count("doubt") == 1  # one block
    assert all(word in text for word in words.split())
    assert "…" not in text


def test_a_word_wider_than_the_terminal_is_folded():
    table = Table("name", "path")
    table.add_row("cache", "/" + "x" * 100)
    assert printed(table, 40).count("x") == 100


def test_a_table_without_rows_is_its_heading():
    table, _ = numeric(6, rows=0)
    text = printed(table, 60)
    assert all(f"column_{i}" in text for i in range(6))


def test_styles_and_sections_survive_the_split():
    table, _ = numeric(6)
    table.add_section()
    table.add_row("total", *["1"] * 6, style="bold")
    assert printed(table, 80).count("total") > 1


FOUND = {"processor": "a cpu", "rates": "fp32 [12], bf16 [34]"}


def test_quiet_and_json_print_the_same_content(monkeypatch):
    monkeypatch.setattr(doctor, "findings", lambda: FOUND)
    assert json.loads(invoke("doctor", "--json").stdout) == FOUND
    lines = invoke("doctor").stdout.splitlines()
    assert lines == ["processor  a cpu", "rates      fp32 [12], bf16 [34]"]  # no markup is lost


def test_show_is_plain_when_quiet_and_pure_when_json():
    quiet = invoke("show", "nano", "--context", "8", "--quiet").stdout
    assert not set("┃│━─") & set(quiet)
    assert "412,288" in quiet
    found = json.loads(invoke("show", "nano", "--context", "8", "--json").stdout)
    assert found["costs"]["parameters"]["total"] == 412288
    assert "mechanisms" not in found


def test_show_every_fits_80_columns():
    narrow = invoke("show", "nano", "--every", "--context", "8", env={"COLUMNS": "80"}).stdout
    assert max(map(len, narrow.splitlines())) <= 80
    assert "412.3k" in narrow
    assert "…" not in narrow
    assert narrow.count("│ grouped_latent ") == 1  # one table, not blocks of columns


def test_without_a_terminal_tables_are_as_wide_as_they_need(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    table, cells = numeric(12)
    Output().table(table)
    text = capsys.readouterr().out
    assert text.count("row 0") == 1
    assert all(cell in text for cell in cells)


@pytest.mark.parametrize("quiet", [False, True])
def test_json_is_alone_on_stdout(capsys, quiet):
    output = Output(quiet=quiet, as_json=True)
    output.note("a note")
    output.rows(["a", "b"], [["1", "2"]])
    output.wrote("some/path")
    output.progress.print("progress")
    output.json({"nan": float("nan"), "list": (1, 2.5), "path": output.__class__})
    captured = capsys.readouterr()
    assert json.loads(captured.out)["nan"] is None
    assert ("progress" in captured.err) != quiet


def test_quiet_prints_paths_and_rows_only(capsys):
    output = Output(quiet=True)
    output.note("a note")
    output.rows(["name", "value"], [["x", "1.5"]], title="a title")
    output.wrote("some/path")
    assert capsys.readouterr().out.split() == ["name", "value", "x", "1.5", "some/path"]


def test_records_are_named_by_their_columns():
    assert records(["", "a"], [["x", "1"]]) == [{"name": "x", "a": "1"}]


MARKUP = "[/b] [bold] :cat: [/]"


def test_names_are_never_read_as_markup(capsys):
    output = Output()
    output.rows(("", MARKUP), [["row", MARKUP]], title=MARKUP)
    output.table(Table(MARKUP, title=MARKUP, caption=MARKUP))
    output.wrote(Path(MARKUP))
    output.progress.print(MARKUP)
    printed = capsys.readouterr()
    assert printed.out.count(MARKUP) == 7
    assert printed.err.strip() == MARKUP


@pytest.mark.parametrize("command", [["show"], ["analyze", "--sequences", "1"]])
def test_model_folder_with_brackets(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(shipped_models()["diff_v1"], "[/b]")
    out = ["--out", "[/i]"] if "analyze" in command else []
    result = invoke(*command, "./[/b]", *out)
    assert result.exit_code == 0, result.output
    assert "b]" in result.stdout
    assert not out or "wrote [/i]" in result.stdout


def test_progress_of_a_run_whose_name_has_brackets():
    bar = Progress("[/b]", SimpleNamespace(end=1))
    bar.bar.console.file = io.StringIO()
    bar.on_train_begin(None, SimpleNamespace(global_step=0), None)
    bar.stop()
    assert "[/b]" in bar.bar.console.file.getvalue()


def test_jobs_whose_names_and_errors_have_brackets(tmp_path):
    job = SimpleNamespace(key="key", title="[/b]", cost=1.0, done=lambda root: 0.0)
    for error, says in {"[/i]: no such file": "failed [/b]: [/i]", None: "done [/b]"}.items():
        console = Console(file=io.StringIO(), width=100)
        engine = MagicMock(**{"result.return_value": (job, error), "progress.return_value": []})
        train_all([job], tmp_path, console, engine)
        assert says in console.file.getvalue()
