"""How a new model starts: the scale of its attention branches and of its attention logits.

With N(0, 0.02) everywhere and head-norm gains of 1, as in the public code, the residual stream
starts at RMS 0.02, the token's embedding. A layer with a head norm adds an output more than ten
times as large and buries the token, one without a norm adds less than the token; so mechanisms
start at scales far apart, and a short comparison measures that. And in narrow models attention
starts uniform: the logits have a standard deviation of 0.02^2 D, 0.05 at D = 128.

The scaled start brings the attention branches of all mechanisms to one order of magnitude, at any
depth and width:

- W_O has standard deviation initializer_range * branch_scale / sqrt(2 L): L layers add 2 L branches
  to the stream, with cross-attention 3 L. (The down projection keeps initializer_range: scaled
  likewise, it learned slower.)
  Where heads have another RMS by themselves, a mechanism's `output_scale` compensates for it.
- the gain of an RMS head norm, times V1's factor 1 - lam_init, is about the RMS of a head's output
  without the norm;
- W_Q and W_K have standard deviation `query_key_std`, or 1 / sqrt(inputs) if that is None:
  attention logits of unit variance, without which narrow models do not learn to retrieve. Their
  inputs are the D channels of the token; or those of a latent, from which W_V is enlarged, so that
  values have the RMS that they have from the token.

`docs/results/initialisation` has the search behind it. Narrow models of text are the exception:
V1 ends better with a query_key_std of 0.02, V2 with the published start.
"""

import math
from typing import Any

from torch import nn

from antiphase.attention.parts import HeadNorm
from antiphase.models.config import AntiphaseConfig

QUERIES_AND_KEYS = ("q_proj", "k_proj", "noise_q_proj", "noise_k_proj", "k_rope_proj")

# RMS of a head's output over that of V's rows, when nothing is learned yet: a row averages over its
# visible keys, so its mean square is 1 / (number of keys). Over the rows of 64 to 512 tokens, the
# root of the mean is 0.27 to 0.12.
AVERAGING = 0.2


def output_std(config: AntiphaseConfig, branches: int = 2) -> float:
    """Return the initial standard deviation of W_O, in blocks of so many branches."""
    factor = config.branch_scale / math.sqrt(branches * config.num_hidden_layers)
    return float(config.initializer_range * factor)


def normed_rms(config: AntiphaseConfig) -> float:
    """Return the RMS at which the outputs of RMS head norms start.

    V's rows have RMS initializer_range * sqrt(D), since the layer's input is normalised.
    """
    return float(AVERAGING * config.initializer_range * math.sqrt(config.hidden_size))


def scaled_start(block: Any, config: AntiphaseConfig) -> None:
    """Initialise the matrices and gains of a block that the scaled start changes.

    Args:
        block: with `self_attn` and perhaps `cross_attn`, initialised as published.
        config: of the model.
    """
    layers = [layer for layer in (block.self_attn, block.cross_attn) if layer is not None]
    for layer in layers:
        _scale_attention(layer, config, branches=len(layers) + 1)


def _scale_attention(attention: Any, config: AntiphaseConfig, branches: int) -> None:
    for name in QUERIES_AND_KEYS:
        if isinstance(projection := getattr(attention, name, None), nn.Linear):
            std = config.query_key_std or projection.in_features**-0.5
            nn.init.normal_(projection.weight, 0.0, std)
    latent = getattr(getattr(attention, "v_proj", None), "in_features", config.hidden_size)
    if latent != config.hidden_size:
        enlarged = config.initializer_range * math.sqrt(config.hidden_size / latent)
        nn.init.normal_(attention.v_proj.weight, 0.0, enlarged)
    std = output_std(config, branches) * attention.output_scale(normed_rms(config))
    nn.init.normal_(attention.o_proj.weight, 0.0, std)
    for part in attention.modules():
        if isinstance(part, HeadNorm) and part.kind == "rms":
            nn.init.constant_(part.gain, normed_rms(config) / part.factor / part.live**0.5)
