"""Python code in a separate process that imports nothing from the working folder.

For code that may kill its process, run on behalf of a user who may stand in any folder: a `json.py`
or `torch.py` that lies there must not be executed.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

_KEPT = (  # names, or beginnings of names, of the variables that decide how PyTorch loads and runs
    *("PATH", "HOME", "TMPDIR", "LANG", "LC_", "SYSTEMROOT", "LD_", "DYLD_", "GLIBC_TUNABLES"),
    *("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "ONEDNN_", "DNNL_", "ATEN_", "TORCH_"),
    *("ASAN_", "UBSAN_", "LSAN_", "ANTIPHASE_"),
)
# Isolated mode leaves the standard library and site-packages on the path. This process's other
# folders come after them. The two packages are those of this process, wherever they lie.
_START = """
import importlib.util, json, sys
path, packages, code = json.loads(sys.argv.pop(1))
sys.path += [folder for folder in path if folder not in sys.path]
for name, file in packages.items():
    sys.modules.pop(name, None)
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
exec(code)
"""


def run_isolated(code: str, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run Python code in a separate process with the PyTorch and antiphase of this one.

    Args:
        code: to run; it finds the arguments in `sys.argv[1:]`.
        *arguments: for the code.
        timeout: in seconds.

    Returns:
        The exit code (below 0 for a signal), stdout and stderr.

    Raises:
        OSError: the process could not be started.
        subprocess.TimeoutExpired: it did not end in time.
    """
    packages = {name: _file(name) for name in ("torch", "antiphase")}
    path = [*_import_path(), str(Path(packages["torch"]).parents[1])]
    start = json.dumps([path, packages, code])
    return subprocess.run(
        [sys.executable, "-I", "-c", _START, start, *arguments],
        cwd=sys.prefix,
        env={name: value for name, value in os.environ.items() if name.startswith(_KEPT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _file(package: str) -> str:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return os.path.abspath(spec.origin)


def _import_path() -> list[str]:
    """Return the folders of this process's import path, without the working folder."""
    try:
        here = os.getcwd()
    except OSError:  # it was deleted
        here = ""
    return [f for f in sys.path if os.path.isabs(f) and os.path.realpath(f) != here]
