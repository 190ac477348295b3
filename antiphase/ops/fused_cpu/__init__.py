"""Fused attention on a CPU, at two levels: C++ (`csrc/`) and Python (`blocks.py`)."""

from antiphase.ops.fused_cpu.operator import forward, level, native_refusal, python_level, uncovered

__all__ = ["forward", "level", "native_refusal", "python_level", "uncovered"]
