"""The wheel with prebuilt kernels, installed where there is no compiler."""

import json
import os
import platform
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import torch

from antiphase.ops.fused_cpu import native

ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        (platform.system(), platform.machine()) != ("Linux", "x86_64"),
        reason="kernels are prebuilt for x86-64 Linux only",
    ),
]

# Run by the installed package: results, gradients and level of every dtype, and what is loaded.
CHECK = """
import json, torch, antiphase
from antiphase.ops import backend_for, diff_attention

def run(inputs, backend):
    leaves = [t.clone().requires_grad_() for t in inputs]
    out = diff_attention(*leaves, 0.5, causal=True, backend=backend)
    return out, *torch.autograd.grad(out.sum(), leaves)

torch.manual_seed(0)
report = {"file": antiphase.__file__, "levels": [], "errors": []}
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    inputs = [torch.randn(2, 3, 150, 24, dtype=dtype) for _ in range(5)]
    report["levels"].append(backend_for(*inputs, 0.5, causal=True).level)
    expected = run([t.double() for t in inputs], "reference")
    found = run(inputs, "fused_cpu")
    report["errors"].append(max(
        float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(found, expected)
    ))
loaded = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
report["openmp"] = [path for path in loaded if "omp" in path.rsplit("/", 1)[-1]]
print(json.dumps(report))
"""


def build_wheel(folder: Path, **environment: str) -> Path:
    """Build as `make wheels` does, with the hook if `environment` switches it on."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder],
        cwd=ROOT,
        env={**os.environ, **environment},
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(cxx, tmp_path_factory) -> Path:
    """The wheel of `make wheels`."""
    folder = tmp_path_factory.mktemp("dist")
    return build_wheel(folder, HATCH_BUILD_HOOK_ENABLE_CUSTOM="true")


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory) -> Path:
    """An environment with the wheel and its dependencies; nothing else of this one is in it."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    packages = sysconfig.get_path("purelib", vars={"base": str(folder)})
    Path(packages, "dependencies.pth").write_text(str(Path(torch.__file__).parents[1]))
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True)
    return folder


def run_bare(bare: Path, program: str, *arguments: str) -> str:
    """Run a program of the environment where no compiler can be found; return its output."""
    (bare / "empty").mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("OMP_NUM_THREADS",) if name in os.environ}
    places = {"PATH": bare / "empty", "HOME": bare, "ANTIPHASE_CACHE": bare / "cache"}
    return subprocess.run(
        [str(bare / "bin" / program), *arguments],
        cwd=bare,
        env=kept | {name: str(path) for name, path in places.items()},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def test_tag_and_content(wheel: Path):
    assert wheel.name.split("-", 2)[2].startswith("py3-none-manylinux_2_")
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        (metadata,) = [name for name in names if name.endswith("dist-info/WHEEL")]
        assert "Root-Is-Purelib: false" in content.read(metadata).decode()
        for capability in ("avx2", "avx512"):
            library = f"antiphase/ops/fused_cpu/prebuilt/antiphase_cpu_{capability}.so"
            assert str(ROOT).encode() not in content.read(library)
    assert "antiphase/ops/fused_cpu/csrc/kernels.cpp" in names  # for other machines


def test_plain_wheel_has_no_libraries(tmp_path: Path):
    """What `pip install` builds from source."""
    wheel = build_wheel(tmp_path)
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as content:
        assert not [name for name in content.namelist() if name.endswith(".so")]


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
    reason="kernels are prebuilt for AVX2 and AVX-512",
)
def test_no_compiler_is_needed(bare: Path):
    found = json.loads(run_bare(bare, "antiphase", "doctor", "--json"))
    assert found["compiler"].startswith("none")
    assert found["fused_cpu"].startswith(f"C++ level, prebuilt: {bare}")
    report = json.loads(run_bare(bare, "python", "-c", CHECK))
    assert report["file"].startswith(str(bare))
    assert report["levels"] == ["c++"] * 3
    for error, tolerance in zip(report["errors"], (1e-5, 3e-2, 3e-3), strict=True):
        assert error < tolerance
    assert len(report["openmp"]) == 1


def test_symbol_that_pytorch_may_not_have(cxx, tmp_path: Path):
    from hatch_build import required_glibc

    source, library = tmp_path / "tiny.cpp", tmp_path / "tiny.so"
    source.write_text("namespace at { void hidden(); }\nvoid f() { at::hidden(); }")
    build = [str(native.compiler()), "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(build, check=True)
    with pytest.raises(RuntimeError, match=r"tiny.so needs .*'at::hidden\(\)'"):
        required_glibc(library)
