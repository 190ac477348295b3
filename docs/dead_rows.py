"""How many rows of threshold attention are dead before anything is learned, by length and width.

Run: python docs/dead_rows.py. It prints the table of docs/attention.md.
"""

import torch

from antiphase.ops import threshold_maps

LENGTHS = (16, 64, 256, 1024, 4096)
WIDTHS = (8, 16, 32, 64, 128)
ROWS, HEADS = 128, 16


def dead_fraction(length: int, width: int) -> float:
    """Return the fraction of rows without any weight, of random queries and keys."""
    torch.manual_seed(0)
    q1, q2 = torch.randn(2, 1, HEADS, ROWS, width)
    k1, k2 = torch.randn(2, 1, HEADS, length, width)
    A = threshold_maps(q1, k1, q2, k2, k1, 0.5).A
    return float((A == 0).all(-1).double().mean())


def table() -> str:
    """Return the fractions, one row per number of visible keys."""
    lines = ["| visible keys | " + " | ".join(f"d = {d}" for d in WIDTHS) + " |"]
    lines.append("|---|" + "---|" * len(WIDTHS))
    for length in LENGTHS:
        cells = " | ".join(f"{dead_fraction(length, width):.2f}" for width in WIDTHS)
        lines.append(f"| {length:,} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
