"""Shared by all tests: a bf16 guard, a fixed seed, and the C++ level or a skip."""

import pytest
import torch

from antiphase.cpu import guard_bf16
from antiphase.ops.fused_cpu import native

guard_bf16()


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def cxx():
    """Skip, loudly, where no C++ compiler is installed."""
    if native.compiler() is None:
        pytest.skip("NO C++ COMPILER: install g++ (`.ci/run` does) to test the C++ level")
    return native.library()
