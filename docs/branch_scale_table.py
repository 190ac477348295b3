"""The scale at which attention enters the residual stream of a new model.

Run: python docs/branch_scale_table.py. It prints the table of docs/models.md.
"""

import torch

from antiphase.analysis.branch_rms import branch_rms
from antiphase.models import AntiphaseForCausalLM, preset
from antiphase.models.config import INITIALISATIONS

SIZES = ("nano", "micro", "mini")
MECHANISMS = ("standard", "diff_v1", "diff_v2", "low_rank_noise", "gated", "signed_mask")
BATCH, LENGTH = 2, 256


def ratios(size: str, attention: str, initialisation: str) -> list[float]:
    """Return the RMS of the attention branch over that of its stream at step 0, by layer."""
    torch.manual_seed(0)
    config = preset(size, attention, initialisation=initialisation)
    ids = torch.randint(0, config.vocab_size, (BATCH, LENGTH))
    return [branch.attention_ratio for branch in branch_rms(AntiphaseForCausalLM(config), ids)]


def table() -> str:
    """Return the ratios in the first and the last layer, for every size and initialisation."""
    starts = [(size, start) for size in SIZES for start in reversed(INITIALISATIONS)]
    lines = ["| attention | " + " | ".join(f"`{size}`, {start}" for size, start in starts) + " |"]
    lines.append("|---|" + "---|" * len(starts))
    for attention in MECHANISMS:
        found = [ratios(size, attention, start) for size, start in starts]
        cells = " | ".join(f"{layers[0]:.2f} / {layers[-1]:.2f}" for layers in found)
        lines.append(f"| `{attention}` | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
