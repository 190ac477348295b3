"""Named shapes and inputs that the tests of `antiphase.ops` share."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """Shapes of one call, named as in `diff_attention`."""

    B: int = 1
    H: int = 2
    Hkv: int = 2
    Hn: int | None = None
    Hkv_n: int | None = None
    Tq: int = 16
    Tk: int | None = None
    d: int = 16
    d2: int | None = None
    dv: int = 32
    causal: bool = True

    def __str__(self) -> str:
        noise = "" if self.Hn is None else f"-Hn{self.Hn}.{self.Hkv_n}"
        width = f"{self.d}.{self.d2 or self.d}.{self.dv}"
        kind = "causal" if self.causal else "full"
        return (
            f"B{self.B}-H{self.H}.{self.Hkv}{noise}-T{self.Tq}.{self.Tk or self.Tq}-d{width}-{kind}"
        )

    def shapes(self) -> list[tuple[int, int, int, int]]:
        """Return the shapes of q1, k1, q2, k2, v."""
        Tk, d2 = self.Tk or self.Tq, self.d2 or self.d
        Hn = self.Hn or self.H
        Hkv_n = self.Hkv_n or self.Hkv
        return [
            (self.B, self.H, self.Tq, self.d),
            (self.B, self.Hkv, Tk, self.d),
            (self.B, Hn, self.Tq, d2),
            (self.B, Hkv_n, Tk, d2),
            (self.B, self.Hkv, Tk, self.dv),
        ]

    def inputs(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """Draw q1, k1, q2, k2, v and a lam per token and head."""
        tensors = [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in self.shapes()]
        lam = torch.rand(self.B, self.H, self.Tq, 1, dtype=torch.float64)
        return [*tensors, lam if dtype == torch.float64 else lam.float()]


# What the C++ level supports: equal head counts, widths that are multiples of 8, no mask.
NATIVE = [
    Case(),
    Case(B=2, H=4, Hkv=2, Tq=63),
    Case(B=2, H=4, Hkv=1, Tq=65, d=8, dv=8),
    Case(Tq=129, d=24, dv=40),
    Case(Tq=130, d=64, d2=16, dv=128),
    Case(Tq=257, causal=False),
    Case(H=1, Hkv=1, Tq=513, d=32, dv=64),
    Case(Tq=77, Tk=300),
    Case(Tq=300, Tk=77),
    Case(H=3, Hkv=3, Tq=70, Tk=333, causal=False),
    Case(B=2, H=4, Hkv=2, Tq=1, Tk=257),
    Case(H=6, Hkv=2, Tq=5, Tk=70, d=40, dv=24),
    Case(Tq=8, Tk=3, causal=True),
    Case(Tq=1, Tk=1, d=8, dv=8),
]

# What only the Python level supports.
GENERAL = [
    Case(Tq=7, d=5, d2=3, dv=1),
    Case(H=6, Hkv=2, Hn=3, Hkv_n=1, Tq=13),
    Case(H=8, Hkv=4, Hn=2, Hkv_n=2, Tq=11, Tk=19, d2=4),
    Case(H=4, Hkv=4, Hn=1, Hkv_n=1, Tq=140, dv=7, causal=False),
    Case(B=3, H=6, Hkv=3, Hn=2, Hkv_n=2, Tq=9, Tk=4, d=3),
]


def errors(results: list[Tensor], expected: list[Tensor]) -> list[float]:
    """Return the largest error of the output and of each gradient, relative to its largest value.

    Inputs are of size 1. A gradient may vanish by cancellation (one key: its weight is 1 whatever
    the score), so gradients smaller than 1 count as 1.
    """
    pairs = [(a.detach().double(), b.detach()) for a, b in zip(results, expected, strict=True)]
    floors = [0.1] + [1.0] * (len(pairs) - 1)
    return [
        float((a - b).abs().amax() / b.abs().amax().clamp_min(floor))
        for (a, b), floor in zip(pairs, floors, strict=True)
    ]


def run(function, inputs: list[Tensor], **options) -> list[Tensor]:  # type: ignore[no-untyped-def]
    """Return the output and the gradient of every input for a fixed upstream gradient."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    out = function(*leaves, **options)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return [out, *torch.autograd.grad(out, leaves, upstream)]
