"""RoPE: distances, and the same bits for a batch as for each of its sequences."""

import pytest
import torch

from antiphase.ops import rotary_table, rotate


def test_rotation_keeps_lengths_and_depends_on_the_distance_alone():
    x = torch.randn(1, 9, 1, 8, dtype=torch.float64)
    rotated = rotate(x, *rotary_table(9, 8))
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1), atol=1e-6, rtol=1e-6)
    same = rotate(x[:, :1].expand_as(x), *rotary_table(9, 8))[0, :, 0]
    products = same @ same.T
    torch.testing.assert_close(products[:-1, :-1], products[1:, 1:], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (1, 8), (5, 6), (4, 16)])  # heads, width
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_batch_has_the_values_and_gradients_of_its_sequences(dtype, shape):
    heads, w = shape[0], 2 * shape[1]
    torch.manual_seed(0)
    x = torch.randn(3, 7, heads, w).to(dtype)
    upstream = torch.randn(3, 7, heads, w).to(dtype)
    table = rotary_table(7, w)

    def of(x, upstream):
        x = x.clone().requires_grad_()
        out = rotate(x, *table)
        out.backward(upstream)
        return out.detach(), x.grad

    alone = [of(x[i : i + 1], upstream[i : i + 1]) for i in range(3)]
    for got, want in zip(of(x, upstream), zip(*alone, strict=True), strict=True):
        assert torch.equal(got, torch.cat(want))
    for strided in (x.transpose(1, 2).contiguous().transpose(1, 2), x.expand(3, -1, -1, -1)):
        assert torch.equal(rotate(strided, *table), rotate(x, *table))


def test_positions_of_every_sequence():
    x = torch.randn(2, 4, 3, 8).bfloat16()
    cos, sin = (t.expand(2, -1, -1).clone() for t in rotary_table(4, 8))
    assert torch.equal(rotate(x, cos, sin), rotate(x, *rotary_table(4, 8)))
