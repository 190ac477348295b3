"""Packages of the Python and npm registries as files: some of them contain public data.

Nothing is installed: an archive is downloaded into a folder and read there. With a folder of
archives that were downloaded elsewhere, no network is needed.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any


def wheel(package: str, version: str, folder: Path, command: str, *, download: bool) -> Path:
    """Return the wheel of a Python package.

    Args:
        package: its name.
        version: exactly this one.
        folder: that contains the wheel, or into which it is downloaded.
        command: that the user called, for messages.
        download: whether to download it with pip, without what it depends on.

    Raises:
        ValueError: it cannot be downloaded, or is not there.
    """
    if download:
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
        _run(
            [sys.executable, "-m", "pip", "download", *options, f"{package}=={version}"],
            "pip",
            f"pip download --no-deps {package}=={version}",
            command,
        )
    found = sorted(folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"))
    if not found:
        raise ValueError(
            f"{folder}: has no wheel of {package} {version}; get it with pip download --no-deps "
            f"{package}=={version}"
        )
    return found[0]


def npm_archive(package: str, version: str, folder: Path, command: str, *, download: bool) -> Path:
    """Return the archive (.tgz) of an npm package.

    Args:
        package: its name, with its scope.
        version: exactly this one.
        folder: that contains the archive, or into which it is downloaded.
        command: that the user called, for messages.
        download: whether to download it with npm.

    Raises:
        ValueError: it cannot be downloaded, or is not there.
    """
    advice = f"npm pack {package}@{version}"
    if download:
        npm = shutil.which("npm")
        if npm is None:
            raise ValueError(
                f"{package}@{version}: npm is not installed; install it (it comes with Node.js), "
                f"or on another machine: {advice}, then {command} --packages FOLDER here"
            )
        arguments = ["pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder)]
        _run([npm, *arguments, f"{package}@{version}"], "npm", advice, command)
    path = folder / f"{package.removeprefix('@').replace('/', '-')}-{version}.tgz"
    if not path.is_file():
        raise ValueError(f"{folder}: has no {path.name}; get it with {advice}")
    return path


def read_manifest(path: Path, command: str) -> dict[str, Any]:
    """Return the manifest of files that were taken out of packages; its `files` are by name.

    Args:
        path: of the manifest.
        command: that writes it, for messages.

    Raises:
        ValueError: it is missing or damaged.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); delete it and run {command}"
        ) from error
    if not isinstance(found, dict) or "files" not in found:
        raise ValueError(f"{path}: is no manifest; delete it and run {command}")
    return found


def _run(arguments: list[str], tool: str, elsewhere: str, command: str) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = (lines or done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ValueError(
            f"{arguments[-1]}: {tool} could not download it ({reason}); this needs a network once. "
            f"On another machine: {elsewhere}, then {command} --packages FOLDER here"
        )
