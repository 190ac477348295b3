"""Random calls of `attention` and `diff_attention`: every argument, shape, layout and dtype."""

import contextlib
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from antiphase.ops import attention, diff_attention, fused_cpu
from antiphase.ops.fused_cpu import native
from antiphase.ops.fused_cpu.abi import KERNELS

FP64, FP32, BF16, FP16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
DTYPES = {  # of each level; in C++ those that differ in code
    "c++": (FP32, FP32, BF16, FP16),
    "python": (FP32, FP64, BF16),
    "reference": (FP32, FP64),
}
_MOST_WEIGHTS = 1 << 20  # of one map, so that the formula in fp64 takes milliseconds
# One or two below and above the sizes of tiles, blocks and vectors, and what is far from them.
_LENGTHS = (1, 2, 3, 5, 8, 17, 40, 63, 64, 65, 100, 127, 129, 130, 200, 255, 257, 300, 400)
_WIDTHS = (1, 3, 8, 8, 16, 20, 24, 32, 33, 40, 64, 72)


@dataclass(frozen=True)
class Call:
    """One call: its tensors, its other arguments, and what runs it."""

    level: str  # "c++", "python" or "reference"
    kernel: str  # micro-kernel of bf16 operands, if this machine has it
    threads: int
    tensors: dict[str, Tensor]  # q1, k1, v, and q2, k2, lam or sink; one object may have two names
    lam: float | None  # where it is a number
    options: dict[str, Any]  # keyword arguments, as the functions take them
    differentiated: frozenset[str]  # the tensors that require grad in a call with gradients

    @property
    def two_maps(self) -> bool:
        """Tell whether the call is one of `diff_attention`."""
        return "q2" in self.tensors

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of queries, keys and values."""
        return self.tensors["q1"].dtype

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Return (B, H, Tq, Tk)."""
        B, H, Tq, _ = self.tensors["q1"].shape
        return B, H, Tq, self.tensors["k1"].shape[2]

    def run(self, tensors: dict[str, Tensor]) -> Tensor:
        """Return the output for these tensors in place of its own."""
        t = tensors
        if not self.two_maps:
            return attention(t["q1"], t["k1"], t["v"], sink=t.get("sink"), **self.options)
        lam = t["lam"] if self.lam is None else self.lam
        return diff_attention(t["q1"], t["k1"], t["q2"], t["k2"], t["v"], lam, **self.options)

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """Select the level, the micro-kernel and the number of threads inside this block."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with contextlib.ExitStack() as stack:
                if self.level == "python":
                    stack.enter_context(fused_cpu.python_level())
                if self.level == "c++":
                    stack.enter_context(micro_kernel(self.kernel))
                yield
        finally:
            torch.set_num_threads(threads)

    def kinds(self) -> list[str]:
        """Return the names under which a campaign counts this call."""
        _, _, Tq, Tk = self.sizes
        kinds = {
            self.level: True,
            str(self.dtype).removeprefix("torch."): True,
            "two maps": self.two_maps,
            "shared keys": self.tensors.get("k2") is self.tensors["k1"],
            "sink": "sink" in self.tensors,
            "at most 8 queries": Tq <= 8,
            "more queries than keys": Tq > Tk,
        }
        for name in ("causal", "mask", "window", "documents", "softcap", "dropout"):
            value = self.options[name]
            kinds[name] = isinstance(value, Tensor) or bool(value)
        return [name for name, is_true in kinds.items() if is_true]

    def __str__(self) -> str:
        """Return all that the call has but the values."""
        given = {**self.tensors, **self.options} | ({} if self.lam is None else {"lam": self.lam})
        arguments = [
            f"{name} {_describe(value) if isinstance(value, Tensor) else value}"
            for name, value in given.items()
            if value is not None
        ]
        arguments += [f"{n} is k1" for n in ("k2", "v") if self.tensors.get(n) is given["k1"]]
        place = f"{self.level} level, {self.kernel}, {self.threads} threads"
        return f"{place}; {', '.join(arguments)}; gradients of {sorted(self.differentiated)}"


def _describe(t: Tensor) -> str:
    if not t.dim():
        return f"{t.item()} ({t.dtype})"
    return f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)} strides {list(t.stride())}"


@contextlib.contextmanager
def micro_kernel(name: str) -> Iterator[None]:
    """Use this micro-kernel for bf16 operands inside this block, if the machine has it."""
    library = native.library()
    chosen = library.bf16_kernel
    if library.rates[name]:
        library.__dict__["bf16_kernel"] = KERNELS.index(name)
    try:
        yield
    finally:
        library.__dict__["bf16_kernel"] = chosen


def draw(seed: int, level: str | None = None) -> Call:
    """Return the call of a seed: the same one on every machine.

    Args:
        seed: Any integer.
        level: The level that runs it; by default drawn, too.
    """
    return _Draw(seed).call(level)


class _Draw:
    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(60))

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def choice(self, values: Sequence[Any]) -> Any:
        return self.random.choice(values)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=FP64)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, dtype=FP64)

    def call(self, level: str | None) -> Call:
        level = level or self.choice(["c++"] * 16 + ["python"] * 3 + ["reference"])
        dtype = self.choice(DTYPES[level])
        kernel, threads = self.choice(KERNELS), self.choice((1, 1, 2, 3))
        tensors, lam = self.tensors(dtype)
        names = sorted({id(t): name for name, t in tensors.items()}.values())
        if self.chance(0.2):
            names = self.random.sample(names, self.random.randint(1, len(names)))
        options = self.options(tensors)
        options["backend"] = "reference" if level == "reference" else self.backend()
        return Call(level, kernel, threads, tensors, lam, options, frozenset(names))

    def backend(self) -> str:
        return self.choice(("auto", "fused_cpu"))

    def tensors(self, dtype: torch.dtype) -> tuple[dict[str, Tensor], float | None]:
        B, Hkv, group = self.choice((1, 1, 2, 3)), self.choice((1, 1, 2, 3)), self.choice((1, 1, 2))
        group = 3 if self.chance(0.1) else group
        Tk = self.choice(_LENGTHS)
        near = (Tk, Tk, max(1, Tk // 2), max(1, Tk - 3), Tk + 3)
        Tq = self.choice((1, 1, 2, 7, 8, 9, *near, *near[:3], self.random.randint(1, 300)))
        if B * Hkv * group * Tq * Tk > _MOST_WEIGHTS:
            B, Hkv, group = 1, 1, self.choice((1, 2))
        H, d, dv = Hkv * group, self.choice(_WIDTHS), self.choice(_WIDTHS)
        wide = dtype in (FP32, FP64)
        amplitude = self.choice((1, 1, 1, 1, 0.1, 0, 4, 30) if wide else (1, 1, 1, 2, 0.1))
        shapes = {"q1": (B, H, Tq, d), "k1": (B, Hkv, Tk, d), "v": (B, Hkv, Tk, dv)}
        two_maps = self.chance(0.75)
        if two_maps:
            shapes |= self.noise_shapes(B, H, Hkv, Tq, Tk, d)
        tensors = {}
        for name, shape in shapes.items():
            t = self.normal(*shape) * (amplitude if name in ("q1", "q2") else 1)
            tensors[name] = self.layout(t.to(dtype))
        if two_maps and shapes["k2"] == shapes["k1"] and self.chance(0.4):
            tensors["k2"] = tensors["k1"]
        if dv == d and self.chance(0.3):
            tensors["v"] = tensors["k1"]
        if not two_maps:
            if self.chance(0.4):
                sink = self.normal(H) * 2
                sink[self.uniform(H) < 0.1] = -torch.inf
                tensors["sink"] = sink.to(self.choice((FP32, FP32, dtype)))
            return tensors, None
        if self.chance(0.2):
            return tensors, self.choice((0.5, 1, 0.0, -0.3))
        shape = [self.choice((1, size)) for size in (B, H, Tq)] + [1]
        lam = self.uniform(*shape) * 3 - 1
        lam = lam.reshape(shape[next((i for i, n in enumerate(shape) if n > 1), 4) :])
        tensors["lam"] = lam.to(self.choice((FP32, FP32, dtype, FP64, BF16)))
        return tensors, None

    def noise_shapes(
        self, B: int, H: int, Hkv: int, Tq: int, Tk: int, d: int
    ) -> dict[str, tuple[int, int, int, int]]:
        def divisor(n: int) -> int:
            return self.choice([i for i in range(1, n + 1) if n % i == 0])

        Hn, Hkv_n, d2 = H, Hkv, d
        if self.chance(0.3):
            Hn = divisor(H)
            Hkv_n = divisor(Hn)
        if self.chance(0.4):
            d2 = self.choice(_WIDTHS)
        return {"q2": (B, Hn, Tq, d2), "k2": (B, Hkv_n, Tk, d2)}

    def layout(self, t: Tensor) -> Tensor:
        """Return the tensor with other strides; what lies between its elements is NaN."""
        B, h, T, d = t.shape
        kind = self.choice(
            ("contiguous",) * 4
            + ("heads behind rows", "channels apart", "part of the channels", "every second head")
            + ("every second row", "part of a cache", "one batch entry", "one head", "one row")
        )
        if kind == "heads behind rows":
            return t.transpose(1, 2).contiguous().transpose(1, 2)
        if kind == "channels apart":
            return t.mT.contiguous().mT
        if kind == "one batch entry":
            return t[:1].expand(B, h, T, d)
        if kind == "one head":
            return t[:, :1].expand(B, h, T, d)
        if kind == "one row":
            return t[:, :, :1].expand(B, h, T, d)
        wider, cut = {
            "part of the channels": ((B, h, T, d + 5), (..., slice(3, d + 3))),
            "every second head": ((B, 2 * h, T, d), (slice(None), slice(1, None, 2))),
            "every second row": ((B, h, 2 * T, d), (..., slice(0, None, 2), slice(None))),
            "part of a cache": ((B, h, T + 20, d), (..., slice(0, T), slice(None))),
        }.get(kind, (t.shape, ...))
        whole = torch.full(wider, torch.nan, dtype=t.dtype)
        whole[cut] = t
        return whole[cut]

    def options(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        Tk = tensors["k1"].shape[2]
        causal = self.chance(0.6)
        windows = (1, 3, 16, 70, 129, Tk, sys.maxsize)
        window = self.choice(windows) if causal and self.chance(0.35) else None
        dropout = self.choice((0.1, 0.5, 0.9, 1e-9)) if self.chance(0.15) else 0.0
        options = {
            "causal": causal,
            "mask": self.mask(tensors) if self.chance(0.4) else None,
            "window": window,
            "keep_first": self.choice((0, 0, 1, 4, 90, sys.maxsize)) if window else 0,
            "documents": self.documents(*tensors["k1"].shape[::2]) if self.chance(0.3) else None,
            "softcap": self.choice((0.5, 2.0, 30.0)) if self.chance(0.15) else None,
            "dropout": dropout,
            "dropout_seed": torch.tensor(self.random.randrange(-(2**63), 2**63))
            if dropout
            else None,
            "scale": self.choice((None, None, None, 0.3, 1.7)),
        }
        if "q2" in tensors:
            options["scale2"] = self.choice((None, None, None, 0.05, 1.1))
        return options

    def documents(self, B: int, Tk: int) -> Tensor:
        shape = self.choice(((Tk,), (1, Tk), (B, Tk)))
        starts = self.uniform(*shape) < self.choice((0.01, 0.1, 0.5))
        ids = starts.to(self.choice((torch.int32, torch.int64))).cumsum(-1)
        if self.chance(0.3):
            ids = ids % 2 * 1000 - 7  # ids are used again later
        return ids.to(self.choice((torch.int32, torch.int64)))

    def mask(self, tensors: dict[str, Tensor]) -> Tensor:
        (B, H, Tq, _), Tk = tensors["q1"].shape, tensors["k1"].shape[2]
        shape = [self.choice((1, B)), self.choice((1, 1, H)), self.choice((1, Tq)), Tk]
        if self.chance(0.05):
            shape[3] = 1
        kind = self.choice(("padding", "padding", "some", "square", "biases", "biases and hidden"))
        key = torch.arange(shape[3])
        if kind == "padding":
            length = torch.randint(Tk + 1, (shape[0], 1, 1, 1), generator=self.generator)
            attend = key >= length if self.chance(0.5) else key < length
        elif kind == "square":
            attend = (key < Tk // 2) == (torch.arange(shape[2])[:, None] < Tq // 2)
            attend = attend.expand(shape)
        else:
            attend = self.uniform(*shape) < self.choice((0.05, 0.7, 0.99))
        mask: Tensor = attend
        if kind.startswith("biases") or self.chance(0.4):
            dtype = self.choice((FP32, FP32, BF16, FP16, FP64))
            hidden = self.choice((-torch.inf, -1e4, torch.finfo(dtype).min))
            if dtype == FP64 and self.chance(0.5):
                hidden = -1e300
            bias = self.normal(*shape) if kind.startswith("biases") else torch.zeros(shape)
            mask = bias.to(dtype)
            if kind != "biases":
                mask = mask.masked_fill(~attend, hidden)
        while mask.dim() > 1 and mask.shape[0] == 1 and self.chance(0.5):
            mask = mask[0]
        if mask.dim() >= 2 and self.chance(0.2):
            mask = mask.mT.contiguous().mT
        if self.chance(0.1):
            mask = mask.expand(B, H, Tq, Tk)
        return mask
