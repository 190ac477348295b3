"""Fused attention on GPUs (CUDA and ROCm), in Triton.

Reading order: `coverage.py` (which calls, and why not others), `operator.py` (the torch.library
operators), `self_check.py` (the first use on a device), then `kernels/`, which needs nothing of
this package: `launch.py`, `forward.py`, `backward.py`, `decode.py`, `visibility.py`, `tiles.py`.

No GPU has run these kernels yet. They were run by Triton's interpreter and compiled for sm_80,
sm_90, sm_100 and gfx942. Triton is imported when a call needs it, not before.
"""

from antiphase.ops.triton.coverage import uncovered, why_not
from antiphase.ops.triton.operator import forward

__all__ = ["forward", "uncovered", "why_not"]
