"""The cache folder: where it is, and that nothing of another user's is used."""

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from antiphase import cpu
from antiphase.cache_folder import cache_folder, create_private, distrust, write_private


@pytest.fixture
def homeless(tmp_path, monkeypatch):
    """No variable says where the cache is; return the folder for temporary files."""
    for name in ("ANTIPHASE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def no_entry(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")


def give_away(path: Path, monkeypatch) -> None:
    """Make a file another user's: by its owner as root, else by who this process is."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_place(homeless, monkeypatch):
    monkeypatch.setenv("HOME", str(homeless / "home"))
    assert cache_folder() == homeless / "home" / ".cache" / "antiphase"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # invalid, says its specification
    assert cache_folder() == homeless / "home" / ".cache" / "antiphase"
    monkeypatch.setenv("XDG_CACHE_HOME", str(homeless / "xdg"))
    assert cache_folder() == homeless / "xdg" / "antiphase"
    monkeypatch.setenv("ANTIPHASE_CACHE", "here")
    assert cache_folder() == Path.cwd() / "here"


def test_user_without_entry_or_home(homeless, monkeypatch):
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    assert cache_folder() == homeless / f"antiphase-{os.geteuid()}"
    create_private(cache_folder())
    assert mode(cache_folder()) == 0o700


@pytest.mark.parametrize("home", ["relative", "file"])
def test_home_in_which_nothing_can_be_created(homeless, monkeypatch, home):
    (homeless / "file").write_text("")
    monkeypatch.setenv("HOME", str(homeless / home) if home == "file" else home)
    assert cache_folder() == homeless / f"antiphase-{os.geteuid()}"


@pytest.mark.parametrize("prepared", ["folder", "link"])
def test_temporary_folder_prepared_by_another_user(homeless, monkeypatch, prepared):
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    folder = cache_folder()
    if prepared == "folder":
        folder.mkdir()
    else:
        (homeless / "mine").mkdir()
        folder.symlink_to(homeless / "mine")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(homeless))
    uid = os.geteuid()
    give_away(folder, monkeypatch)
    if os.geteuid() != uid:  # the folder's name holds this process's user
        folder.rename(homeless / f"antiphase-{os.geteuid()}")
    with pytest.raises(PermissionError, match=r"belongs to user .*ANTIPHASE_CACHE"):
        cache_folder()


def test_distrust(tmp_path, monkeypatch):
    path = tmp_path / "file"
    assert distrust(path) is None
    path.write_text("")
    for bits, trusted in {0o600: True, 0o755: True, 0o620: False, 0o602: False}.items():
        path.chmod(bits)
        assert (distrust(path) is None) == trusted
    assert "can be written by other users (mode 602)" in str(distrust(path))
    path.chmod(0o600)
    give_away(path, monkeypatch)
    assert f"{path} belongs to" in str(distrust(path))


def test_link_of_another_user(tmp_path, monkeypatch):
    (tmp_path / "mine").write_text("")
    link = tmp_path / "link"
    link.symlink_to("mine")
    assert distrust(link) is None
    give_away(link, monkeypatch)
    assert "belongs to" in str(distrust(link))


def test_new_folders_and_files_are_private(tmp_path):
    before = os.umask(0o002)
    try:
        create_private(tmp_path / "a" / "b")
        write_private(tmp_path / "a" / "b" / "c", "text")
    finally:
        os.umask(before)
    assert [mode(tmp_path / p) for p in ("a", "a/b", "a/b/c")] == [0o700, 0o700, 0o600]
    assert os.listdir(tmp_path / "a" / "b") == ["c"]


@pytest.mark.parametrize("bits", [0o700, 0o770])
def test_stored_probe_of_bf16_is_read_only_from_a_private_folder(tmp_path, monkeypatch, bits):
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))
    probed = []
    monkeypatch.setattr(cpu, "_probe_bf16", lambda: probed.append(1) or "works")
    assert cpu._stored_probe() == "works"
    (stored,) = (tmp_path / "cache").iterdir()
    stored.write_text("crashes")
    (tmp_path / "cache").chmod(bits)
    assert cpu._stored_probe() == ("crashes" if bits == 0o700 else "works")
    assert len(probed) == (1 if bits == 0o700 else 2)
