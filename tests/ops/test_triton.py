"""The Triton backend on a machine without a GPU: interpreter, compiler, choice of the backend."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from antiphase import backend_for, diff_attention
from antiphase.ops import attention, sdpa
from antiphase.ops.arguments import validate
from antiphase.ops.triton import coverage, self_check
from tests.ops.cases import Case, errors, run

ROOT = Path(__file__).parents[2]
needs_triton = pytest.mark.skipif(not coverage.INSTALLED, reason="triton is not installed")


def interpret(marker: str) -> None:
    """Run `triton_interpreted.py` in a process whose kernels are interpreted."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", marker]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/ops/triton_interpreted.py"],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout or done.stdout.count(".") > 10


@needs_triton
def test_in_the_interpreter():
    interpret("not slow")


@needs_triton
@pytest.mark.slow
def test_everything_in_the_interpreter():
    interpret("slow")


def test_cpu_tensors_need_the_interpreter():
    inputs = Case(Tq=5).inputs(torch.float32)
    with pytest.raises(ValueError, match="'triton' cannot run this call: tensors are on the CPU"):
        diff_attention(*inputs, backend="triton")


@pytest.fixture
def gpu(monkeypatch):
    """Pretend that a GPU is there, for fake tensors, and that the kernels passed their check."""
    monkeypatch.setattr(coverage, "_unfit_device", lambda device: None)
    monkeypatch.setattr(self_check, "failure", lambda device, dtype: None)
    with FakeTensorMode():
        yield


def draw(dtype=torch.bfloat16, d: int = 64, dv: int = 128, Tq: int = 64, shared: bool = False):
    sizes = ((4, Tq, d), (2, 64, d), (4, Tq, d), (2, 64, d), (2, 64, dv))
    q1, k1, q2, k2, v = (torch.empty(1, *s, dtype=dtype, device="cuda") for s in sizes)
    return [q1, k1, q2, k1 if shared else k2, v, 0.5]


UNCOVERED = {
    "dropout": ({}, {"dropout": 0.1}),
    "soft-cap": ({}, {"softcap": 3.0}),
    "float64": ({"dtype": torch.float64}, {}),
    "d = 160": ({"d": 160}, {}),
    "dv = 300": ({"dv": 300}, {}),
    "boolean over the keys": ({}, {"mask": (1, 1, 64, 64)}),
}


@pytest.mark.parametrize("reason", UNCOVERED)
def test_auto_says_why_not_triton(gpu, reason: str):
    shape, options = UNCOVERED[reason]
    if "mask" in options:
        options = {"mask": torch.empty(options["mask"], dtype=torch.bool, device="cuda")}
    choice = backend_for(*draw(**shape), causal=True, **options)
    assert choice.backend in ("sdpa", "reference")
    assert reason in choice.reason
    with pytest.raises(ValueError, match="'triton' cannot run this call"):
        diff_attention(*draw(**shape), causal=True, backend="triton", **options)


def test_a_batch_with_too_many_heads(gpu):
    q, v = (torch.empty(40_000, 2, 8, n, dtype=torch.bfloat16, device="cuda") for n in (16, 32))
    assert "65535 heads" in backend_for(q, q, q, torch.empty_like(q), v, 0.5).reason


def test_auto_takes_triton_on_a_gpu(gpu):
    assert backend_for(*draw(), causal=True).backend == "triton"
    assert backend_for(*draw(torch.float16, Tq=1), causal=True, window=5).backend == "triton"
    tokens = torch.empty(1, 1, 1, 64, dtype=torch.bool, device="cuda")
    assert backend_for(*draw(), mask=tokens).backend == "triton"
    q, k, _, _, v, _ = draw()
    sink = torch.empty(4, device="cuda")
    assert backend_for(q, k, None, None, v, sink=sink).backend == "triton"


def test_shared_keys_are_one_flash_call_on_a_gpu(gpu):
    """DIFF V2 needs one ordinary flash call; with a mask or in fp32, none would run."""
    choice = backend_for(*draw(dv=64, shared=True), causal=True)
    assert choice.backend == "sdpa"
    assert "one call of a flash kernel" in choice.reason
    assert "fp32" in backend_for(*draw(torch.float32), causal=True).reason  # they spill
    assert backend_for(*draw(dv=64, shared=True), causal=True, window=9).backend == "triton"
    assert backend_for(*draw(dv=64, shared=True, Tq=7), causal=True).backend == "triton"


def test_a_failed_check_means_sdpa(monkeypatch):
    monkeypatch.setattr(coverage, "_unfit_device", lambda device: None)
    monkeypatch.setattr(self_check, "failure", lambda device, dtype: "decode: relative error 1")
    with FakeTensorMode():
        choice = backend_for(*draw(), causal=True)
    assert choice.backend == "sdpa"
    assert "decode: relative error 1" in choice.reason


def test_the_result_of_a_check_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(self_check, "_name", lambda device, dtype: f"triton-{dtype}")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "some GPU")
    device, calls = torch.device("cuda", 0), []

    def check(device, dtype):
        calls.append(dtype)
        if dtype == torch.float16:
            raise RuntimeError("the compiler crashed")
        return None if dtype == torch.bfloat16 else "decode: relative error 1"

    monkeypatch.setattr(self_check, "check", check)
    dtypes = (torch.bfloat16, torch.float32, torch.float16)
    for _ in range(2):
        self_check.failure.cache_clear()
        with pytest.warns(RuntimeWarning, match="some GPU, but sdpa"):
            found = [self_check.failure(device, dtype) for dtype in dtypes]
        assert found == [None, "decode: relative error 1", "RuntimeError: the compiler crashed"]
    assert calls == list(dtypes)
    self_check.failure.cache_clear()


def test_both_maps_in_one_call(monkeypatch):
    """Queries of a pair are adjacent, so that both use their key and value head."""
    calls, original = [], torch.nn.functional.scaled_dot_product_attention

    def count(q, k, v, **options):
        calls.append((q.shape, k.shape))
        return original(q, k, v, **options)

    monkeypatch.setattr(sdpa.F, "scaled_dot_product_attention", count)
    q1, k, q2, _, v, lam = Case(B=2, H=4, Hkv=2, Tq=20, dv=16).inputs()

    def f(q1, k, q2, v, lam, backend, **options):
        return diff_attention(q1, k, q2, k, v, lam, causal=True, backend=backend, **options)

    inputs = [q1, k, q2, v, lam]
    masks = (None, torch.rand(2, 4, 20, 20) > 0.3, torch.randn(20, 20))
    for mask in masks:
        calls.clear()
        found = run(f, inputs, backend="sdpa", mask=mask)
        assert max(errors(found, run(f, inputs, backend="reference", mask=mask))) < 1e-12
        assert len(calls) == 1
        assert calls[0][0] == (2, 8, 20, 16)
    args = validate(q1, k, q2, k, v, lam, None, None, True, 0.3, 0.2)
    calls.clear()
    sdpa.forward(args)
    assert len(calls) == 2  # different scales


@needs_triton
def test_the_fastest_tile_that_fits_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton.runtime.errors import OutOfResources

    from antiphase.ops.triton.kernels.tiles import Tile
    from antiphase.ops.triton.kernels.tuning import choose

    tiles = [Tile(128, 64, 8, 2), Tile(64, 64, 4, 2), Tile(64, 32, 4, 1)]
    small = [Tile(32, 32, 4, 1), Tile(16, 16, 4, 1)]
    times, launched = dict(zip(tiles, (1.0, 9.0, 2.0), strict=True)), []
    too_large = {tiles[0]}

    def launch(tile):
        launched.append(tile)
        if tile in too_large:
            raise OutOfResources(200_000, 100_000, "shared memory")

    clock = lambda launch, tile: times[tile]  # noqa: E731
    assert choose(tiles, small, launch, None, measure=False) == tiles[1]
    launched.clear()
    assert choose(tiles, small, launch, "a" * 64, clock=clock) == tiles[2]
    assert launched == tiles  # small ones are not tried where others fit
    launched.clear()
    assert choose(tiles, small, launch, "a" * 64, clock=clock) == tiles[2]
    assert not launched  # read from the cache
    too_large |= {*tiles, small[0]}
    assert choose(tiles, small, launch, None, measure=False) == small[1]
    assert choose(tiles, small, launch, "b" * 64, clock=clock) == small[1]
    assert choose(tiles, small, launch, "b" * 64, clock=clock) == small[1]
    with pytest.raises(OutOfResources):
        choose(tiles, small[:1], launch, None, clock=clock)


def test_one_map_is_covered_without_lam():
    q, k, v = (torch.randn(1, 2, 5, 16) for _ in range(3))
    with pytest.raises(ValueError, match="TRITON_INTERPRET"):
        attention(q, k, v, backend="triton")
