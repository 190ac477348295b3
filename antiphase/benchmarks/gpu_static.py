"""Compile every variant of the Triton kernels for GPUs that are not there, and read what came out.

Registers, spilled registers, shared memory and occupancy by tile, and how many products are
instructions of tensor cores. Nothing is run. `antiphase bench gpu-static` prints the table.
"""

import functools
import hashlib
import itertools
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphase.cache_folder import cache_folder, create_private, write_private

if TYPE_CHECKING:
    from antiphase.ops.triton.kernels.tiles import Tile

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
KEY_MASKS = ("full", "causal", "all")  # of dkv, where every other mask is an interval per key
DTYPES = {"bf16": 16, "fp32": 32}
WITHOUT_PRODUCTS = ("row_products", "merge")
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
    tile: "Tile"

    @property
    def uses_products(self) -> bool:
        """Tell whether the kernel has matrix products."""
        return self.kernel not in WITHOUT_PRODUCTS


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
        """Return what must not be: spills, much shared memory, products without tensor cores.

        Spills of fp32 on NVIDIA, and of the smallest tiles, are known, and in the table.
        """
        from antiphase.ops.triton.kernels.tiles import SMALL

        v, found = self.variant, []
        known = v.dtype == "fp32" and v.architecture != "gfx942"
        known |= v.uses_products and v.tile in SMALL[DTYPES[v.dtype]][v.kernel]
        if self.spills and not known:
            found.append(f"{self.spills} bytes of spilled registers")
        if self.shared > SHARED_MEMORY[v.architecture]:
            found.append(f"{self.shared} bytes of shared memory")
        if v.uses_products:
            large, small = TENSOR_CORES[v.architecture]
            rows = v.tile.BN if v.kernel == "dkv" else v.tile.BM
            expected = small if rows < 64 else large
            if v.dtype == "fp32":  # products of fp32 may take the smaller instruction
                ok = self.instructions.get(small) or self.instructions.get(large)
            else:
                ok = self.instructions.get(expected)
            if not ok:
                found.append(f"no {expected} instruction")
        return found


def variants(architectures: Iterable[str] = ARCHITECTURES) -> Iterator[Variant]:
    """Return all variants that are compiled, with every tile that a device may use.

    Every mask with every number of maps in 16 bits. For fp32, at two of the four widths, and for
    the tiles of devices with little shared memory, the mask that needs most: padding and a window
    with kept keys.

    Args:
        architectures: Names from `ARCHITECTURES`.
    """
    from antiphase.ops.triton.kernels.tiles import SMALL, TILES, Tile

    for architecture in architectures:
        for dtype, widths, kernel in itertools.product(DTYPES, WIDTHS, KERNELS):
            if dtype == "fp32" and widths not in ("medium", "wide"):
                continue
            if kernel in WITHOUT_PRODUCTS:
                tile = Tile(16, 16, 4, 1)
                for maps in ("two maps", "one map, sink"):
                    yield Variant(kernel, architecture, widths, dtype, maps, "full", tile)
                continue
            masks = KEY_MASKS if kernel == "dkv" else MASKS
            for tile in TILES[architecture, DTYPES[dtype], kernel][widths]:
                every = dtype == "bf16"
                for maps, mask in itertools.product(MAPS, masks) if every else [(MAPS[0], "all")]:
                    yield Variant(kernel, architecture, widths, dtype, maps, mask, tile)
            for tile in SMALL[DTYPES[dtype]][kernel]:
                yield Variant(kernel, architecture, widths, dtype, "two maps", "all", tile)


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
    aligned = (i for i, n in enumerate(names) if n not in constants and _is_aligned(n))
    source = ASTSource(
        function,
        signature,
        {(names.index(n),): value for n, value in constants.items() if n in names},
        {(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    options = {"num_warps": variant.tile.warps, "num_stages": variant.tile.stages}
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
    fused = two and dv <= 128 if variant.kernel == "forward" else two
    mode, padding = MASKS[variant.mask]
    widths = {"D": d, "D2": d2, "DV": dv, "BD": d, "BD2": d2, "BDV": dv}
    maps = {"TWO": fused, "SHARED": variant.maps == "shared keys", "SINK": not two}
    masks = {"MODE": min(mode, 2) if variant.kernel == "dkv" else mode, "PADDING": padding}
    tile = {"BM": variant.tile.BM, "BN": variant.tile.BN, "HOIST": variant.tile.hoist}
    precision = "ieee" if variant.architecture.startswith("gfx") else "tf32x3"
    results = {"SAVE": True, "SUBTRACT": two and not fused, "PRECISION": precision}
    every: dict[str, Any] = {**widths, **maps, **masks, **tile, **results}
    return {name: every[name] for name in _function(variant).arg_names if name in every}


_INTEGERS = {"Bounds": "*i32", "KeyRange": "*i32", "RowRanges": "*i32", "Padding": "*u8"}
_FP32 = ("Lam", "Sink", "Stats", "Deltas", "Partial", "PartialStats")
_SCALARS = ("H", "Tq", "Tk")


def _type(name: str, variant: Variant) -> str:
    """Return the type of a kernel's argument by its name; pointers begin with a capital."""
    if _is_pointer(name):
        return _INTEGERS.get(name) or f"*{'fp32' if name in _FP32 else variant.dtype}"
    return "fp32" if name.startswith("scale") else "i32"


def _is_pointer(name: str) -> bool:
    return name[0].isupper() and name not in _SCALARS


def _is_aligned(name: str) -> bool:
    """Tell whether an argument is a multiple of 16 in common calls: pointers, strides of heads."""
    return _is_pointer(name) or name.startswith(("q1_", "k1_", "q2_", "k2_", "v_", "do_"))


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
        by_registers = waves * 4 // variant.tile.warps
    else:
        per_warp = -(-registers * 32 // 256) * 256
        by_registers = 65536 // (per_warp * variant.tile.warps)
    return int(min(by_registers, SHARED_MEMORY[architecture] // max(shared, 1), 32))


@functools.cache
def _source() -> str:
    import triton

    from antiphase.ops.triton.kernels.tuning import source_digest

    return repr((source_digest(), triton.__version__))


def _key(variant: Variant) -> str:
    options = (variant.architecture, variant.kernel, variant.dtype, variant.tile)
    text = repr((_source(), *options, _constants(variant)))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def as_json(found: list[Compiled]) -> list[dict[str, Any]]:
    """Return the results as plain data."""
    return [{**asdict(c), "faults": c.faults} for c in found]


def as_markdown(found: list[Compiled]) -> str:
    """Return the results as a page: one table per architecture, one row for all masks of a kernel.

    Args:
        found: From `compile_all`.
    """
    import triton

    about = f"triton {triton.__version__}, {len(found)} variants"
    lines = [_PAGE.format(about=about)]
    for architecture in ARCHITECTURES:
        rows = [c for c in found if c.variant.architecture == architecture]
        if not rows:
            continue
        memory = SHARED_MEMORY[architecture] >> 10
        lines += [f"\n## {architecture}, {memory} KB of shared memory\n", _HEADER, _RULE]
        groups: dict[tuple[object, ...], list[Compiled]] = {}
        for c in rows:
            v = c.variant
            groups.setdefault((v.kernel, v.widths, v.dtype, v.maps, v.tile), []).append(c)
        lines += [_row(group) for group in groups.values()]
    faults = [f"- {c.variant}: {fault}" for c in found for fault in c.faults]
    lines += ["\n## Faults\n", *(faults or ["None."])]
    return "\n".join(lines) + "\n"


_PAGE = """# The Triton kernels, compiled and not run

Made by `antiphase bench gpu-static --out docs/results/gpu-static.md` ({about}). No GPU was there:
this is what the compilers say (ptxas, read by cuobjdump; LLVM for AMD), not a measurement of speed.

Each row is a kernel with one of its tiles: the preferred one of the architecture first, then others
that a device may measure, then small ones for devices with little shared memory (only these may
spill in 16 bits). A row covers the masks that it was compiled with (their number stands in the
row; with one mask it is the one that needs most): registers
per thread and shared memory as a range, spilled bytes per thread the most, programs per
multiprocessor (compute unit) the fewest. Products are counted in the code with the heaviest mask.
fp16 compiles as bf16 does. fp32 products are three tf32 products on NVIDIA ("tf32x3"), which hold
each operand twice and spill; IEEE on AMD, which do not. Blocks of fewer than 64 rows have the
smaller instruction (`mma`). In gfx942, scalar registers that do not fit lie in lanes of vector
registers, not in memory. With dv = 256, the forward kernel of two maps is that of one map, which
runs for the noise map and then for the signal map and subtracts."""
_HEADER = (
    "| kernel | d / dv | dtype | maps | masks | tile | warps, stages | registers | spilled | "
    "shared KB | programs | products |"
)
_RULE = "|" + "---|" * 12


def _row(group: list[Compiled]) -> str:
    v = group[0].variant
    d, _, dv = WIDTHS[v.widths]
    heaviest = group[-1]
    products = ", ".join(f"{name} {n}" for name, n in heaviest.instructions.items()) or "-"
    cells = (
        *(v.kernel, f"{d} / {dv}", v.dtype, v.maps, str(len(group)), f"{v.tile.BM} x {v.tile.BN}"),
        f"{v.tile.warps}, {v.tile.stages}",
        _range([c.registers for c in group]),
        str(max(c.spills for c in group)),
        _range([-(-c.shared // 1024) for c in group]),
        str(min(c.occupancy for c in group)),
        products,
    )
    return f"| {' | '.join(cells)} |"


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
