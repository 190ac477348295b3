"""Triton kernels of differential attention; a folder that needs only PyTorch and Triton.

The package `kernels` of Hugging Face loads a copy of it (`antiphase build-kernels --hub`).
"""

from .interface import attention, attention_forward, diff_attention

__all__ = ["attention", "attention_forward", "diff_attention"]
