"""The Triton kernels through the compilers of GPUs that are not there."""

import dataclasses

import pytest

from antiphase.ops.triton import coverage

if not coverage.INSTALLED:
    pytest.skip("triton is not installed", allow_module_level=True)

from antiphase.benchmarks import gpu_static
from antiphase.ops.triton.kernels.tiles import TILES, Tile

SOME = [
    ("forward", "sm_80", "wide"),
    ("dq", "sm_90", "medium"),
    ("dkv", "sm_100", "medium"),
    ("forward", "gfx942", "medium"),
]


@pytest.fixture(autouse=True)
def _products_are_fused(monkeypatch):
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # else Triton warns


def chosen(kernel: str, architecture: str, widths: str) -> gpu_static.Variant:
    """Return the variant in bf16 with two maps and every mask."""
    wanted = (kernel, architecture, widths, "bf16", "two maps", "all")
    for v in gpu_static.variants([architecture]):
        if (v.kernel, v.architecture, v.widths, v.dtype, v.maps, v.mask) == wanted:
            return v
    raise AssertionError(wanted)


@pytest.mark.parametrize("name", SOME, ids=" ".join)
def test_compiles_without_faults(name, monkeypatch, tmp_path):
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))  # compiled here and now
    variant = chosen(*name)
    found = gpu_static.compile_variant(variant)
    assert found.faults == []
    assert 32 < found.registers <= 512
    assert found.occupancy >= 1
    assert gpu_static.compile_variant(variant) == found  # from the cache


def test_forward_tiles_have_at_least_64_rows_and_32_keys():
    """But for those of devices with little shared memory."""
    by_widths = [widths for (_, _, kernel), widths in TILES.items() if kernel == "forward"]
    tiles = {tile for widths in by_widths for some in widths.values() for tile in some}
    assert all(tile.BM >= 64 and tile.BN >= 32 for tile in tiles)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", gpu_static.ARCHITECTURES)
def test_every_variant_compiles_without_faults(architecture: str):
    found = gpu_static.compile_all(list(gpu_static.variants([architecture])))
    assert {c.variant: c.faults for c in found if c.faults} == {}


def compiled(**changed) -> gpu_static.Compiled:
    variant = chosen("forward", "sm_90", "medium")
    good = gpu_static.Compiled(variant, 200, 0, 65536, 1, {"wgmma": 24})
    return dataclasses.replace(good, **changed)


def test_faults():
    assert compiled().faults == []
    assert "spilled" in compiled(spills=8).faults[0]
    assert "shared memory" in compiled(shared=300_000).faults[0]
    assert "no wgmma" in compiled(instructions={"mma": 24}).faults[0]  # or an empty kernel
    few_rows = dataclasses.replace(compiled().variant, tile=Tile(32, 32, 4, 1))
    assert compiled(variant=few_rows, instructions={"mma": 24}).faults == []
    fp32 = dataclasses.replace(compiled().variant, dtype="fp32")
    assert compiled(variant=fp32, spills=8).faults == []  # known, and in the table


def test_page():
    rows = [compiled(), compiled(variant=chosen("dq", "sm_90", "wide"), registers=180, spills=4)]
    page = gpu_static.as_markdown(rows)
    assert "## sm_90, 227 KB" in page
    assert (
        "| forward | 64 / 128 | bf16 | two maps | 1 | 128 x 32 | 8, 2 | 200 | 0 | 64 | 1 |" in page
    )
    assert "4 bytes of spilled registers" in page.split("## Faults")[1]
    assert "No GPU was there" in page
