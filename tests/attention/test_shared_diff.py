"""Shared DIFF is V1 with the weights that its base and its updates add up to."""

import torch

from antiphase.attention import DiffV1, SharedDiff
from tests.attention.cases import tokens


def test_it_is_v1_with_the_summed_weights():
    torch.manual_seed(0)
    layer = SharedDiff(64, 8, 4, layer=2, rank=3, rope_theta=1e4).double()
    v1 = DiffV1(64, 8, 4, layer=2, rope_theta=1e4).double()
    weights = layer.state_dict()
    with torch.no_grad():
        for which in "qk":
            base, down = weights[f"{which}_proj.weight"], weights[f"{which}_down_proj.weight"]
            both = [
                base + weights[f"{which}{b + 1}_up_proj.weight"] @ down[3 * b : 3 * b + 3]
                for b in (0, 1)
            ]
            pairs = torch.stack([w.view(-1, 8, 64) for w in both], dim=1)  # adjacent heads
            getattr(v1, f"{which}_proj").weight.copy_(pairs.view(-1, 64))
    common = {n: t for n, t in weights.items() if n.startswith(("v_", "o_", "lam", "norm"))}
    v1.load_state_dict(common, strict=False)
    x = tokens(dtype=torch.float64)
    torch.testing.assert_close(layer(x, causal=True), v1(x, causal=True))
    _, ours = layer(x, causal=True, return_maps=True)
    _, theirs = v1(x, causal=True, return_maps=True)
    torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(ours["signal"], ours["noise"], atol=1e-3)
