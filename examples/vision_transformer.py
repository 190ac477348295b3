"""A vision transformer with differential attention, trained on synthetic images.

    python examples/vision_transformer.py --attention diff_v1

Every image is noise with one brighter patch; the class is the quadrant of that patch. Patches
attend to each other in both directions and positions are learned, so the layer needs no RoPE.
"""

import argparse

import torch
from torch import Tensor, nn

from antiphase.attention import mechanism


class Block(nn.Module):
    """Attention and feed-forward, each with a norm before it."""

    def __init__(self, attention: str, width: int, heads: int, layer: int) -> None:
        super().__init__()
        attention_class = mechanism(attention)  # any that attends in both directions, by name
        self.attention = nn.Sequential(
            nn.LayerNorm(width), attention_class(width, heads, layer=layer)
        )
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, D]; not causal: every patch attends to every patch."""
        x = x + self.attention(x)
        return x + self.mlp(x)


class VisionTransformer(nn.Module):
    """Images [B, 1, 16, 16] to logits of four classes."""

    def __init__(self, attention: str, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=4, stride=4)
        self.positions = nn.Parameter(torch.randn(1, 16, width))
        self.blocks = nn.Sequential(*(Block(attention, width, heads, i) for i in range(depth)))
        self.head = nn.Linear(width, 4)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [B, 4]."""
        x = self.patches(images).flatten(2).mT + self.positions  # [B, 16, D]
        return self.head(self.blocks(x).mean(dim=1))


def batch(size: int) -> tuple[Tensor, Tensor]:
    """Return images and the quadrant of each one's bright patch."""
    images, places = torch.randn(size, 1, 16, 16), torch.randint(0, 4, (size, 2))
    for image, (row, column) in zip(images, places.tolist(), strict=True):
        image[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 3.0
    return images, 2 * (places[:, 0] // 2) + places[:, 1] // 2


def main() -> None:
    """Train and print the accuracy on new images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attention", default="diff_v1")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = VisionTransformer(options.attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(options.steps):
        images, classes = batch(64)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), classes).backward()
        optimizer.step()
    with torch.no_grad():
        images, classes = batch(512)
        accuracy = (model(images).argmax(-1) == classes).float().mean()
    print(f"{options.attention}: accuracy {accuracy:.2f} on 512 new images (chance 0.25)")


if __name__ == "__main__":
    main()
