"""Compile every variant of the Triton kernels for GPUs that are not there, and read what came out.

Registers, spilled registers, shared memory and occupancy by tile, and how many products are
instructions of tensor cores. Nothing is run. `antiphase bench gpu-static` prints the table.
"""

import functools
import hashlib
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from antiphase.cache_folder import cache_folder, create_private, write_private

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "gfx942")
KERNELS = ("forward", "dq", "dkv", "decode", "row_products", "merge")
# (d, d2, dv) of the width classes; d128/dv256 is the paper's shape.
WIDTHS = {
    "narrow": (32, 32, 64),
    "medium": (64, 64, 128),
    "large": (128, 128, 128),
    "wide": (128, 128, 256),
}
MASKS = {  # name: (mode, padding)
    "full": (0, False),
    "causal": (1, False),
    "padding": (1, True),
    "documents or window": (2, False),
    "window, first keys": (3, False),
    "all": (3, True),
}
MAPS = ("two maps", "shared keys", "one map, sink")
SHARED_MEMORY = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10}
TENSOR_CORES = {  # the instruction of tiles with at least 64 rows, and that of smaller ones
    "sm_80": ("mma", "mma"),
    "sm_90": ("wgmma", "mma"),
    "sm_100": ("tcgen05", "mma"),
    "gfx942": ("mfma", "mfma"),
}
_INSTRUCTIONS = {
    "mma": r"\bmma\.sync",
    "wgmma": r"wgmma\.mma_async",
    "tcgen05": r"tcgen05\.mma",
    "mfma": r"v_mfma",
}


@dataclass(frozen=True)
class Variant:
    """One kernel as it is compiled: for what, and with which tile."""

    kernel: str
    architecture: str
    widths: str
    dtype: str  # "bf16" or "fp32"; fp16 compiles as bf16 does
    maps: str
    mask: str
    BM: int
    BN: int
    warps: int
    stages: int
    hoist: bool

    @property
    def uses_products(self) -> bool:
        """Tell whether the kernel has matrix products."""
        return self.kernel not in ("row_products", "merge")


@dataclass(frozen=True)
class Compiled:
    """What the compiler says about a variant."""

    variant: Variant
    registers: int  # per thread; of gfx942 vector and accumulation registers
    spills: int  # bytes of stack per thread
    shared: int  # bytes
    occupancy: int  # programs per multiprocessor or compute unit
    instructions: dict[str, int]  # products by kind

    @property
    def faults(self) -> list[str]:
        """Return what must not be: spills, too much shared memory, products without tensor cores."""
        v, found = self.variant, []
        if self.spills:
            found.append(f"{self.spills} bytes of spilled registers")
        if self.shared > SHARED_MEMORY[v.architecture]:
            found.append(f"{self.shared} bytes of shared memory")
        if v.uses_products:
            large, small = TENSOR_CORES[v.architecture]
            rows = v.BN if v.kernel == "dkv" else v.BM
            expected = small if rows < 64 else large
            if v.dtype == "fp32":  # products of fp32 may take the smaller instruction
                ok = self.instructions.get(small) or self.instructions.get(large)
            else:
                ok = self.instructions.get(expected)
            if not ok:
                found.append(f"no {expected} instruction")
        return found


def variants(
    architectures: Iterable[str] = ARCHITECTURES, every_tile: bool = False
) -> Iterator[Variant]:
    """Return all variants, with the preferred tile of each.

    Args:
        architectures: Names from `ARCHITECTURES`.
        every_tile: With the other tiles that a device may measure, too.
    """
    from antiphase.ops.triton.kernels.tiles import TILES

    for architecture in architectures:
        for bits, dtype in ((16, "bf16"), (32, "fp32")):
            for widths in WIDTHS:
                for kernel in KERNELS:
                    small = {"row_products": (16, 16, 4, 1, True), "merge": (16, 16, 4, 1, True)}
                    tiles = [small[kernel]] if kernel in small else [
                        (t.BM, t.BN, t.warps, t.stages, t.hoist)
                        for t in TILES[architecture, bits, kernel][widths]
                    ]
                    masks = ["full"] if kernel in small else list(MASKS)
                    maps = [m for m in MAPS if kernel not in small or m != "shared keys"]
                    for tile in tiles if every_tile else tiles[:1]:
                        for m in maps:
                            for mask in masks:
                                yield Variant(
                                    kernel, architecture, widths, dtype, m, mask, *tile
                                )  # fmt: skip


def compile_variant(variant: Variant) -> Compiled:
    """Compile one variant, or read the result of an earlier time from the cache folder."""
    stored = cache_folder() / "gpu-static" / f"{_key(variant)}.json"
    if stored.is_file():
        return Compiled(variant, **json.loads(stored.read_text()))
    found = _compile(variant)
    content = {name: value for name, value in asdict(found).items() if name != "variant"}
    create_private(stored.parent)
    write_private(stored, json.dumps(content))
    return found


def compile_all(
    chosen: list[Variant], processes: int = 2, tick: Callable[[], None] = lambda: None
) -> list[Compiled]:
    """Compile variants in several processes; results are in the order of `chosen`.

    Args:
        chosen: What to compile.
        processes: Number of processes.
        tick: Called after each.
    """
    with ProcessPoolExecutor(processes) as pool:
        jobs = {pool.submit(compile_variant, variant): variant for variant in chosen}
        found = {}
        for job in as_completed(jobs):
            found[jobs[job]] = job.result()
            tick()
    return [found[variant] for variant in chosen]


def _compile(variant: Variant) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    hip = variant.architecture.startswith("gfx")
    target = (
        GPUTarget("hip", variant.architecture, 64)
        if hip
        else GPUTarget("cuda", int(variant.architecture.removeprefix("sm_")), 32)
    )
    function, constants = _function(variant), _constants(variant)
    names = function.arg_names
    signature = {n: "constexpr" if n in constants else _type(n, variant) for n in names}
    aligned = (i for i, n in enumerate(names) if n not in constants and _aligned(n))
    source = ASTSource(
        function,
        signature,
        {(names.index(n),): value for n, value in constants.items() if n in names},
        {(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    kernel = triton.compile(source, target=target, options=options)
    registers, spills = _amd_registers(kernel.asm["amdgcn"]) if hip else _nvidia_registers(kernel)
    text = kernel.asm["amdgcn" if hip else "ptx"]
    counts = {name: len(re.findall(p, text)) for name, p in _INSTRUCTIONS.items()}
    shared = int(kernel.metadata.shared)
    return Compiled(
        variant,
        registers,
        spills,
        shared,
        _occupancy(variant, registers, shared),
        {name: n for name, n in counts.items() if n},
    )


def _function(variant: Variant) -> Any:
    from antiphase.ops.triton.kernels import backward, decode, forward

    modules = {"forward": forward, "decode": decode, "merge": decode}
    return getattr(modules.get(variant.kernel, backward), f"{variant.kernel}_kernel")


def _constants(variant: Variant) -> dict[str, Any]:
    d, d2, dv = WIDTHS[variant.widths]
    two = variant.maps != "one map, sink"
    mode, padding = MASKS[variant.mask]
    every = {
        **{"D": d, "D2": d2, "DV": dv, "BD": d, "BD2": d2, "BDV": dv},
        **{"TWO": two, "SHARED": variant.maps == "shared keys", "SINK": not two},
        **{"MODE": mode, "PADDING": padding, "HOIST": variant.hoist},
        "PRECISION": "ieee" if variant.architecture.startswith("gfx") else "tf32x3",
        **{"SAVE": True, "FUSED": two and dv <= 128, "BM": variant.BM, "BN": variant.BN},
    }
    return {name: every[name] for name in _function(variant).arg_names if name in every}


def _type(name: str, variant: Variant) -> str:
    """Return the type of a kernel's argument by its name."""
    if name in ("Q1", "K1", "Q2", "K2", "V", "Out", "Noise", "DOut", "DQ1", "DQ2", "DK1", "DK2", "DVs"):
        return f"*{variant.dtype}"
    if name in ("Bounds", "KeyRange", "RowRanges"):
        return "*i32"
    if name == "Padding":
        return "*u8"
    if name[0].isupper() and name != "H":
        if name in ("Tq", "Tk"):
            return "i32"
        return "*fp32"
    return "fp32" if name.startswith("scale") else "i32"


def _aligned(name: str) -> bool:
    """Tell whether an argument is a multiple of 16 in common calls: pointers, strides of heads."""
    pointer = name[0].isupper() and name not in ("H", "Tq", "Tk")
    return pointer or name.startswith(("q1_", "k1_", "q2_", "k2_", "v_", "do_"))


def _nvidia_registers(kernel: Any) -> tuple[int, int]:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    values = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", text))
    return int(values["REG"]), int(values["STACK"]) + int(values["LOCAL"])


def _amd_registers(text: str) -> tuple[int, int]:
    """Return vector registers (with those of accumulators), and bytes of scratch memory.

    Scalar registers that do not fit are kept in lanes of vector registers, not in memory.
    """
    values = dict(re.findall(r"\.(vgpr_count|private_segment_fixed_size):\s+(\d+)", text))
    return int(values["vgpr_count"]), int(values["private_segment_fixed_size"])


def _occupancy(variant: Variant, registers: int, shared: int) -> int:
    """Return how many programs fit on a multiprocessor, by registers and shared memory."""
    architecture = variant.architecture
    if architecture.startswith("gfx"):
        per_wave = -(-registers // 8) * 8
        waves = min(8, 512 // max(per_wave, 1))  # per SIMD unit, of which there are four
        by_registers = waves * 4 // variant.warps
    else:
        per_warp = -(-registers * 32 // 256) * 256
        by_registers = 65536 // (per_warp * variant.warps)
    return int(min(by_registers, SHARED_MEMORY[architecture] // max(shared, 1), 32))


@functools.cache
def _source() -> str:
    import triton

    from antiphase.ops.triton.kernels.tuning import source_digest

    about = (source_digest(), triton.__version__, torch.__version__)
    return repr((*about, Path(__file__).read_text()))


def _key(variant: Variant) -> str:
    return hashlib.sha256(repr((variant, _source())).encode()).hexdigest()[:24]
