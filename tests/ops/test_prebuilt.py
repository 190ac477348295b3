"""The library that a wheel brings is used where it works; else one is built, with the reason."""

import shutil
from pathlib import Path

import pytest
import torch

from antiphase.ops.fused_cpu import native


@pytest.fixture
def installed(cxx, tmp_path: Path, monkeypatch) -> Path:
    """The prebuilt library of an installation on a machine without a compiler."""
    folder = tmp_path / "prebuilt"
    folder.mkdir(mode=0o755)
    path = folder / native.library_name(torch.backends.cpu.get_cpu_capability())
    shutil.copy(cxx.path, path)
    path.chmod(0o644)
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "PREBUILT", folder)
    monkeypatch.setattr(native, "compiler", lambda: None)
    monkeypatch.setattr(native, "_load", native._load.__wrapped__)
    monkeypatch.setattr(native, "_run_self_test", lambda path: {"rates": dict(cxx.rates)})
    return path


def fail_self_test(monkeypatch, failing: Path) -> None:
    """Let the self-test of one library fail."""
    passed = native._run_self_test
    failure = {"failure": "wrong results"}
    monkeypatch.setattr(
        native, "_run_self_test", lambda path: failure if path == failing else passed(path)
    )


def test_no_compiler_is_needed(installed: Path):
    library = native.library()
    assert library.path == installed
    assert library.origin == "prebuilt"


def test_no_cache_is_needed(installed: Path, tmp_path: Path, monkeypatch):
    """The results of the self-test cannot be stored; it runs in every process."""
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "file" / "cache"))
    assert native.library().origin == "prebuilt"


def test_built_where_the_prebuilt_one_fails(installed: Path, cxx, monkeypatch):
    fail_self_test(monkeypatch, installed)
    monkeypatch.setattr(native, "build", lambda: cxx.path)
    library = native.library()
    assert library.path == cxx.path
    assert library.origin == "built from source (prebuilt: wrong results)"


def test_built_for_another_instruction_set(installed: Path, cxx, monkeypatch):
    installed.unlink()
    monkeypatch.setattr(native, "build", lambda: cxx.path)
    capability = torch.backends.cpu.get_cpu_capability()
    reason = f"(prebuilt: none for {capability} in this installation)"
    assert native.library().origin == f"built from source {reason}"


def test_python_level_has_both_reasons(installed: Path, monkeypatch):
    fail_self_test(monkeypatch, installed)
    with pytest.raises(
        native.Unavailable, match=r"prebuilt: wrong results; built from source: no C\+\+ compiler"
    ):
        native.library()


def test_library_without_a_symbol_of_this_pytorch(installed: Path):
    """As after an update of PyTorch that removed a function."""
    found, needed = installed.read_bytes(), b"_ZN2at15get_num_threadsEv\0"
    assert needed in found
    installed.write_bytes(found.replace(needed, needed.replace(b"num", b"our")))
    with pytest.raises(native.Unavailable, match=r"undefined symbol: \w+get_our_threads"):
        native.library()


@pytest.mark.parametrize("place", ["folder", "library"])
def test_not_used_if_others_may_write_it(installed: Path, monkeypatch, place: str):
    path = installed if place == "library" else installed.parent
    path.chmod(0o777)
    with pytest.raises(native.Unavailable, match=f"{path} can be written by others than the pack"):
        native.library()


def test_used_if_all_who_may_write_it_may_write_the_code(installed: Path, monkeypatch):
    """As in an environment that a group shares: it is as safe as the code that loads it."""
    installed.chmod(0o664)
    monkeypatch.setattr(native, "_writers", lambda path: (0, 0, 0o020))
    assert native.library().origin == "prebuilt"


def test_another_pytorch_is_tested_again(installed: Path, cxx, monkeypatch):
    tested: list[str] = []

    def self_test(path: Path) -> dict[str, object]:
        tested.append(torch.__version__)
        return {"rates": dict(cxx.rates)}

    monkeypatch.setattr(native, "_run_self_test", self_test)
    here = torch.__version__
    for version in (here, "2.99.0", here, "2.99.0"):
        monkeypatch.setattr(torch, "__version__", version)
        assert native.library().origin == "prebuilt"
    assert tested == [here, "2.99.0"]


def test_forced_preparation_tests_again(installed: Path, cxx, monkeypatch):
    """A failure that was stored does not stay for ever, and nothing is built."""
    with monkeypatch.context() as failing:
        fail_self_test(failing, installed)
        with pytest.raises(native.Unavailable, match="wrong results"):
            native.prepare()
    with pytest.raises(native.Unavailable, match="wrong results"):
        native.prepare()
    assert native.prepare(force=True).origin == "prebuilt"
