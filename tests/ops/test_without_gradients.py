"""Norm and rotation without gradients: the same bits as with them."""

import pytest
import torch

from antiphase.ops import rms_norm, rotary_table, rotate

each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])


@each_dtype
def test_rms_norm(dtype):
    x, gain = torch.randn(2, 5, 24).to(dtype), torch.randn(24)
    want = rms_norm(x, gain, 1e-5)
    with torch.no_grad():
        assert torch.equal(rms_norm(x, gain, 1e-5), want)


@each_dtype
def test_rotate(dtype):
    x = torch.randn(2, 5, 3, 8).to(dtype)
    before = x.clone()
    want = rotate(x, *rotary_table(5, 8))
    with torch.no_grad():
        assert torch.equal(rotate(x, *rotary_table(5, 8)), want)
    assert torch.equal(x, before)
