"""Draw the two maps of a differential head and their difference: `python examples/maps.py OUT.png`.

Both maps carry the same background over 96 keys; only the first looks for the needle. The
difference keeps the needle and drops the background, which is what the mechanism is named for.
"""

import sys
from pathlib import Path

import matplotlib
import torch
import torch.nn.functional as F

from antiphase import attention_maps
from antiphase.ops import Maps

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def make_maps(length: int = 96, width: int = 32, needle: int = 37) -> Maps:
    """Return the maps of one head whose two halves share their noise."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(1, 1, *shape, generator=generator, dtype=torch.float64)

    q, k = draw(length, width), draw(length, width)  # the background, common to both maps
    q1, k1 = F.pad(q, (0, 1), value=1.0), F.pad(k, (0, 1))  # one more channel looks for the needle
    k1[:, :, needle, -1] = 4.0 * width**0.5
    q2 = q + 0.3 * draw(length, width)
    scale = width**-0.5
    return attention_maps(
        q1, k1, q2, k, draw(length, width), 0.8, causal=True, scale=scale, scale2=scale
    )


def main(path: Path) -> None:
    """Draw the picture."""
    maps = make_maps()
    limit = float(maps.A.abs().amax()) / 4
    figure, axes = plt.subplots(1, 3, figsize=(12, 4.2), layout="constrained")
    titles = ("A1: signal and noise", "A2: noise", "A = A1 - 0.8 A2")
    for axis, title, values in zip(axes, titles, maps, strict=True):
        image = axis.imshow(values[0, 0], cmap="PuOr", vmin=-limit, vmax=limit)
        axis.set(title=title, xlabel="key")
    axes[0].set_ylabel("query")
    figure.colorbar(image, ax=axes, shrink=0.9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "maps.png"))
