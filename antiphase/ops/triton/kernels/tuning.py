"""Which tile a launch uses: the fastest of a short list, measured once and remembered.

The result is kept per process and, in Triton's cache, between processes: by kernel source, device,
shape class, class of lengths and kind of mask. Tiles that a device has too little shared memory for
are left out. The interpreter takes a small tile and measures nothing.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch
import triton
from triton.runtime.cache import get_cache_manager
from triton.runtime.errors import OutOfResources

from . import backward, blocks, forward
from .tiles import Tile, candidates

if TYPE_CHECKING:
    from .launch import Call

Launch = Callable[[Tile], None]
INTERPRETED = Tile(32, 32, 4, 1)
_chosen: dict[tuple[object, ...], Tile] = {}
_measuring: ContextVar[bool] = ContextVar("antiphase_measuring", default=True)


def run_fastest(kernel: str, call: "Call", launch: Launch) -> None:
    """Launch a kernel with the tile that is fastest on this device.

    Args:
        kernel: "forward", "dq", "dkv" or "decode".
        call: What to compute; decides which tiles are tried.
        launch: Launches the kernel with a tile. It may be called several times.
    """
    if triton.knobs.runtime.interpret:
        launch(INTERPRETED)
        return
    device = call.q1.device
    lengths = tuple(max(128, triton.next_power_of_2(t.shape[2])) for t in (call.q1, call.k1))
    kind = (call.seen.mode, call.seen.padding is not None, call.sink is not None)
    key = (kernel, device, call.shape, *lengths, *kind)
    if key not in _chosen:
        tiles, small = candidates(kernel, call.shape, architecture(device))
        if not _may_measure():
            choose(tiles, small, launch, None, measure=False)  # which launches it
            return
        _chosen[key] = choose(tiles, small, launch, _stored_name(key))
    launch(_chosen[key])


@contextlib.contextmanager
def without_measuring() -> Iterator[None]:
    """Take the first tile that fits inside this block."""
    token = _measuring.set(False)
    try:
        yield
    finally:
        _measuring.reset(token)


def choose(
    tiles: list[Tile],
    small: list[Tile],
    launch: Launch,
    name: str | None,
    measure: bool = True,
    clock: Callable[[Launch, Tile], float] | None = None,
) -> Tile:
    """Return the fastest tile that fits the device.

    Args:
        tiles: In the order of preference.
        small: If none of them fits, the first of these that does is returned.
        launch: Launches the kernel with a tile; raises `OutOfResources` if it does not fit.
        name: Under which the result is stored; None: it is not.
        measure: Otherwise the first that fits is returned, and nothing is stored.
        clock: Returns the milliseconds of a launch.

    Raises:
        OutOfResources: If no tile fits.
    """
    store = None if name is None else get_cache_manager(name)
    if store is not None and (path := store.get_file("tile.json")) is not None:
        with open(path, encoding="utf-8") as file:
            stored = Tile(**json.load(file))
        if stored in (*tiles, *small):
            return stored
    times: dict[Tile, float] = {}
    failure: OutOfResources | None = None
    for tile in (*tiles, *small):
        if times and tile not in tiles:
            break
        try:
            launch(tile)  # compiles
            if not measure:
                return tile
            times[tile] = (clock or _milliseconds)(launch, tile) if tile in tiles else 0.0
        except OutOfResources as error:
            failure = error
    if not times:
        assert failure is not None
        raise failure
    best = min(times, key=lambda tile: times[tile])
    if store is not None:
        store.put(json.dumps(best.as_dict()), "tile.json", binary=False)
    return best


def architecture(device: torch.device) -> str:
    """Return whose tiles a device uses: "sm_80", "sm_90", "sm_100" or "gfx942"."""
    if torch.version.hip:
        return "gfx942"
    major, _ = torch.cuda.get_device_capability(device)
    return {9: "sm_90", 10: "sm_100"}.get(major, "sm_80")  # 12: consumer cards, as sm_80


def _milliseconds(launch: Launch, tile: Tile) -> float:
    return float(triton.testing.do_bench(lambda: launch(tile), warmup=5, rep=20))


def _may_measure() -> bool:
    """Tell whether kernels may be timed; not while a CUDA graph is recorded."""
    return _measuring.get() and not torch.cuda.is_current_stream_capturing()


def _stored_name(key: tuple[object, ...]) -> str:
    kernel, device, *rest = key
    assert isinstance(device, torch.device)
    sources = (source_digest(), triton.__version__, torch.cuda.get_device_name(device))
    return hashlib.sha256(repr((kernel, *sources, *rest)).encode()).hexdigest()


def source_digest() -> str:
    """Return a digest of the kernels' source files."""
    from . import decode

    text = hashlib.sha256()
    for module in (blocks, forward, backward, decode):
        with open(module.__file__ or "", "rb") as file:
            text.update(file.read())
    return text.hexdigest()
