"""A separate process has this one's packages, and runs no file of the working folder."""

import sys

import pytest
import torch

import antiphase
from antiphase import cpu
from antiphase.isolated_process import run_isolated
from antiphase.ops.fused_cpu import native

SHADOWED = ("json.py", "torch.py", "numpy.py", "antiphase/__init__.py", "sitecustomize.py")


@pytest.fixture(params=["", "PYTHONPATH=.", "on sys.path"])
def hostile_folder(request, tmp_path, monkeypatch):
    """The working folder, whose modules write their names to a file when they are imported."""
    for name in SHADOWED:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\n")
    monkeypatch.chdir(tmp_path)
    if request.param == "PYTHONPATH=.":
        monkeypatch.setenv("PYTHONPATH", ".")
    elif request.param:
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def executed(folder):
    return (folder / "executed").read_text() if (folder / "executed").exists() else ""


def test_self_test_of_the_kernels(cxx, hostile_folder):
    assert set(native._run_self_test(cxx.path)) == {"rates"}
    assert executed(hostile_folder) == ""


def test_probe_of_bf16_products(hostile_folder):
    assert cpu._probe_bf16() in ("works", "crashes")
    assert executed(hostile_folder) == ""


def test_packages_are_those_of_this_process(tmp_path, monkeypatch):
    """Also with an interpreter in whose own folders they are not installed."""
    (tmp_path / "a_dependency.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "executable", getattr(sys, "_base_executable", sys.executable))
    code = "import torch, antiphase, a_dependency; print(torch.__file__, antiphase.__file__)"
    done = run_isolated(code, timeout=100)
    assert done.stdout.split() == [torch.__file__, antiphase.__file__], done.stderr


def test_environment_is_reduced_to_what_pytorch_needs(monkeypatch):
    for name in ("OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "LD_LIBRARY_PATH", "PYTHONSTARTUP", "X"):
        monkeypatch.setenv(name, "1")
    code = "import os, sys; print(*os.environ, *sys.argv[1:])"
    found = run_isolated(code, "argument", timeout=100).stdout.split()
    assert {"OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "LD_LIBRARY_PATH", "argument"} <= set(found)
    assert not {"PYTHONSTARTUP", "X"} & set(found)


def test_working_folder_that_was_deleted(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert run_isolated("print('ran')", timeout=100).stdout == "ran\n"
