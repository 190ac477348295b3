"""Errors and global options: one line on stderr, exit codes, the traceback, the version."""

import json
import subprocess
import sys

import pytest

from antiphase import __version__
from antiphase.cli import doctor
from tests.cli.runner import invoke


@pytest.mark.parametrize("module", ["antiphase", "antiphase.cli"])
def test_both_modules_are_the_command(module):
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"antiphase {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nano", "--context", "0"], "antiphase: --context: got 0, expected at least 1"),
        (["show"], "antiphase: Missing argument"),
        (["show", "nano", "--nonsense"], "antiphase: No such option: --nonsense"),
        (["show", "nano", "--context", "x"], "antiphase: Invalid value for"),
        (["nonsense"], "antiphase: No such command 'nonsense'"),
        (["--nonsense"], "antiphase: No such option: --nonsense"),
    ],
)
def test_an_error_is_one_line_with_exit_code_2(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def test_usage_errors_say_where_the_help_is():
    assert "; see " in invoke("bench", "model", "--nonsense").stderr
    assert "bench model --help" in invoke("bench", "model", "--nonsense").stderr


def test_debug_shows_the_traceback(monkeypatch):
    wrong = ["show", "nano", "--context", "0"]
    for result in (invoke("--debug", *wrong), invoke(*wrong, env={"ANTIPHASE_DEBUG": "1"})):
        assert result.exit_code == 2
        assert "Traceback" in result.stderr
        assert result.stderr.endswith("antiphase: --context: got 0, expected at least 1\n")
    assert "Traceback" not in invoke(*wrong).stderr  # it does not stay on


def test_messages_of_several_lines_become_one(monkeypatch):
    def fail() -> None:
        raise OSError("first line\n\n  second line\n")

    monkeypatch.setattr(doctor, "findings", fail)
    result = invoke("doctor")
    assert (result.exit_code, result.stderr) == (2, "antiphase: first line second line\n")


def test_a_bug_keeps_its_traceback(monkeypatch):
    def fail() -> None:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(doctor, "findings", fail)
    assert isinstance(invoke("doctor").exception, RuntimeError)


def test_an_interruption_exits_with_130(monkeypatch):
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "findings", interrupt)
    result = invoke("doctor")
    assert (result.exit_code, result.stderr) == (130, "antiphase: interrupted\n")


def test_without_arguments_the_help_is_shown():
    for arguments in ([], ["bench"]):
        result = invoke(*arguments)
        assert "Usage" in result.output
        assert "antiphase:" not in result.stderr


LISTINGS = """
import contextlib, io, sys
from antiphase.cli import main
for line in sys.argv[1:]:
    sys.argv = ["antiphase", *line.split()]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main()
    assert out.getvalue(), line
    heavy = {"torch", "transformers", "numpy"} & set(sys.modules)
    assert not heavy, (line, heavy)
"""


def run_listings(*lines: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LISTINGS, *lines], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_help_and_listings_import_neither_torch_nor_transformers():
    commands = "show generate task train compare analyze maps lab unchain import-weights doctor"
    commands += " build-kernels serve"
    benches = [
        f"bench {name} --help"
        for name in ("attention", "model", "training", "adapter", "gpu-static")
    ]
    listings = ["task --list", "train --list", "unchain --list", "task --list --json"]
    run_listings(
        "--help", "--version", *(f"{c} --help" for c in commands.split()), *benches, *listings
    )


def test_the_listing_of_the_lab_imports_neither_torch_nor_transformers():
    run_listings("lab --list")


@pytest.mark.parametrize(
    ("command", "key", "name"),
    [
        ("task", "task", "needle"),
        ("train", "recipe", "needle-nano"),
        ("unchain", "method", "dex"),
        ("lab", "test", 1),
    ],
)
def test_listings_print_json(command, key, name):
    found = json.loads(invoke(command, "--list", "--json").stdout)
    assert name in [entry[key] for entry in found]
    plain = invoke(command, "--list")
    assert plain.exit_code == 0
    assert len(plain.stdout.splitlines()) == len(found)


def test_options_that_would_be_ignored_raise(tmp_path):
    seeds = invoke("unchain", "--seeds", "2")
    assert seeds.exit_code == 2
    assert "needs --controls" in seeds.stderr
    task = invoke(
        "analyze", "diff_v1", "--task", "needle", "--text", __file__, "--out", str(tmp_path / "a")
    )
    assert task.exit_code == 2
    assert "--task needle: diff_v1 is analysed on text" in task.stderr
