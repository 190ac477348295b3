"""How the branches of a new model start: at which scale they enter the residual stream.

With N(0, 0.02) everywhere the stream starts at RMS 0.02, the token's embedding. An attention layer
with a head norm of gain 1 then adds an output many times as large and buries the token, while one
without a norm adds less than the token: mechanisms start at scales more than ten times apart, and
short comparisons measure that. The scaled start brings the branches of all mechanisms to one order
of magnitude:

- W_O and the down projection are drawn with initializer_range * branch_scale / sqrt(2 L), as the L
  layers add 2 L branches;
- the gain of an RMS head norm starts at about the RMS that a head's output has without the norm.

The search that chose it is `docs/initialisation_search.py`, its numbers are in the log.
"""

import math
from typing import Any

from torch import nn

from antiphase.attention.parts import HeadNorm
from antiphase.models.config import AntiphaseConfig

# RMS of a head's output over that of V's rows, when nothing is learned yet: a row averages over its
# visible keys, so its mean square is 1 / (number of keys); over the rows of 64 to 512 tokens the
# root of the mean is 0.27 to 0.12.
AVERAGING = 0.2


def branch_std(config: AntiphaseConfig) -> float:
    """Return the initial standard deviation of W_O and of the down projection."""
    factor = config.branch_scale / math.sqrt(2 * config.num_hidden_layers)
    return float(config.initializer_range * factor)


def head_norm_gain(config: AntiphaseConfig) -> float:
    """Return the initial gain of RMS head norms.

    V's rows have RMS initializer_range * sqrt(D), since the layer's input is normalised.
    """
    return float(AVERAGING * config.initializer_range * math.sqrt(config.hidden_size))


def scale_branches(block: Any, config: AntiphaseConfig) -> None:
    """Initialise what decides the scale of a block's two branches.

    Args:
        block: with `self_attn` and `mlp`.
        config: of the model.
    """
    std = branch_std(config)
    nn.init.normal_(block.self_attn.o_proj.weight, 0.0, std)
    nn.init.normal_(block.mlp.down_proj.weight, 0.0, std)
    for part in block.self_attn.modules():
        if isinstance(part, HeadNorm) and part.kind == "rms":
            nn.init.constant_(part.gain, head_norm_gain(config))
