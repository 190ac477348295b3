"""Import of peers that `make` puts beside the environment: timm and flash-linear-attention.

timm needs a torchvision built for the installed torch. A CPU build of torch has no matching
torchvision in the registry, and a mismatched one breaks transformers. `make` therefore installs
timm alone into a separate folder. While timm is imported, torchvision's names, of which timm's
attention uses none, are empty classes.

flash-linear-attention's kernels need a GPU. Its naive forms are files that need torch and einops
alone, and are loaded one by one, without its package.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from pathlib import Path

import pytest

FOLDER = Path(sys.prefix) / "peers"


class _AnyName(type):
    def __getattr__(cls, name: str) -> str:
        return name


class _Empty(types.ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyName(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Empty(spec.name)

    def exec_module(self, module):
        pass


def import_timm() -> types.ModuleType:
    """Return the timm that `make` installed into the separate folder."""
    if not (FOLDER / "timm").is_dir():
        raise RuntimeError(f"timm is not in {FOLDER}; `make test` puts it there")
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    sys.path.append(str(FOLDER))
    try:
        return importlib.import_module("timm")
    finally:
        sys.meta_path.remove(finder)
        sys.path.remove(str(FOLDER))
        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]


def fla_naive(op: str) -> types.ModuleType:
    """Return the naive forms of one op of flash-linear-attention; skip a test without them."""
    path = FOLDER / "fla" / "ops" / op / "naive.py"
    if not path.is_file():
        pytest.skip(f"flash-linear-attention (fla-core) is not in {FOLDER}; `make` puts it there")
    spec = importlib.util.spec_from_file_location(f"fla_naive_{op}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.append(str(FOLDER))  # for einops
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module
