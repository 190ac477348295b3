"""The command line, as a user meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphase.cli import app

SMALL = ["--length", "64", "--heads", "2", "--width", "8", "--rounds", "2", "--threads", "1"]


def invoke(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_doctor_names_the_level(cxx):
    result = invoke("doctor")
    assert result.exit_code == 0, result.output
    assert "C++ level" in result.output
    assert "brgemm fp32" in result.output


def test_bench_writes_a_table_json_and_a_picture(tmp_path: Path):
    json_file, picture = tmp_path / "out" / "bench.json", tmp_path / "out" / "bench.png"
    result = invoke("bench", "attention", *SMALL, "--json", str(json_file), "--plot", str(picture))
    assert result.exit_code == 0, result.output
    run = json.loads(json_file.read_text())
    assert {c["setting"]["dtype"] for c in run["cells"]} == {"fp32", "bf16"}
    rows = run["cells"][0]["rows"]
    standard = [r for r in rows if r["name"].startswith("standard")]
    assert [r["backward"] for r in standard] == [False, True]
    assert all(r["wall"]["median"] == 1.0 for r in standard)
    assert all(r["milliseconds"] > 0 and r["gflops"] > 0 for r in rows)
    assert len({r["name"] for r in rows}) >= 5
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_bench_of_decoding():
    result = invoke("bench", "attention", *SMALL, "--queries", "1", "--no-backward")
    assert result.exit_code == 0, result.output
    assert "1 query rows" in result.output
    assert "forward + backward" not in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dtype", "int8"], "--dtype: got 'int8', allowed are fp32, bf16, fp16"),
        (["--heads", "3"], "--heads: got 3"),
        (["--length", "0"], "--length: got 0"),
        (["--rounds", "0"], "--rounds: got 0"),
        (["--queries", "0"], "--queries: got 0"),
        (["--threads", "0"], "--threads: got 0"),
        (["--queries", "100"], "--queries: got 100"),
    ],
)
def test_bad_options_are_refused(options: list[str], message: str):
    result = invoke("bench", "attention", *SMALL, *options)
    assert result.exit_code == 2
    assert message in result.output


def test_build_kernels_without_a_compiler(tmp_path: Path):
    result = subprocess.run(
        [sys.executable, "-m", "antiphase", "build-kernels"],
        env={"PATH": "", "CXX": "/nowhere/c++", "ANTIPHASE_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "could not be built: no C++ compiler" in result.stderr
    assert "Traceback" not in result.stderr
