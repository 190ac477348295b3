"""Fused attention on a CPU, at two levels: C++ (`csrc/`) and Python (`blocks.py`).

Reading order: `operator.py` (the torch.library operators), `level.py` (C++ or Python, and why),
then `abi.py` (the call into C++), `native.py` (build and load) and `blocks.py` (the Python level).
"""

from antiphase.ops.fused_cpu.decode import decode
from antiphase.ops.fused_cpu.level import choose_level, python_level, unsupported_by_cpp
from antiphase.ops.fused_cpu.linear import linear
from antiphase.ops.fused_cpu.operator import forward

__all__ = ["choose_level", "decode", "forward", "linear", "python_level", "unsupported_by_cpp"]
