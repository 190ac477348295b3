"""The folder layout in which Hugging Face's package `kernels` loads the Triton kernels.

One folder of Python files per backend, `build/torch-BACKEND`, each a copy of `kernels/` with its
`metadata.json`. `kernels.get_local_kernel(FOLDER)` loads it; so does `get_kernel(NAME)` with
LOCAL_KERNELS=NAME=FOLDER, or once the folder is a repository of the hub.
"""

import json
import shutil
from pathlib import Path

NAME = "antiphase-attention"
BACKENDS = ("cuda", "rocm", "cpu")  # on a CPU: Triton's interpreter
VERSION = 1


def write_kernel_repository(folder: Path) -> list[Path]:
    """Write the kernels as a repository that the package `kernels` loads.

    Args:
        folder: Created if it does not exist. `build/` in it is replaced.

    Returns:
        The folders of the backends.
    """
    from antiphase.ops.triton.kernels.tuning import source_digest

    source = Path(__file__).parent / "kernels"
    build = folder / "build"
    shutil.rmtree(build, ignore_errors=True)
    written = []
    for backend in BACKENDS:
        target = build / f"torch-{backend}"
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        metadata = {
            "id": f"_{NAME.replace('-', '_')}_{backend}_{source_digest()[:8]}",
            "name": NAME,
            "version": VERSION,
            "license": "Apache-2.0",
            "python-depends": [],
            "backend": {"type": backend},
        }
        (target / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
        written.append(target)
    return written
