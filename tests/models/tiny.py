"""Models of a few thousand parameters, and inputs for them."""

import torch

from antiphase.models import AntiphaseConfig, AntiphaseForCausalLM
from tests.attention.cases import SMALL

VOCABULARY = 61


def config(name: str, **fields: object) -> AntiphaseConfig:
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "attention_options": SMALL.get(name, {}),
        "initializer_range": 0.1,  # large enough for differences to show
        "pad_token_id": 0,
    }
    return AntiphaseConfig(attention=name, **{**sizes, **fields})


def model(name: str, **fields: object) -> AntiphaseForCausalLM:
    torch.manual_seed(0)
    return AntiphaseForCausalLM(config(name, **fields)).eval()


def token_ids(B: int = 3, T: int = 19, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, (B, T), generator=generator)


def left_padded(ids: torch.Tensor, lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each sequence's last `lengths` tokens, padded with 0 on the left, and the mask."""
    mask = torch.arange(ids.shape[1]) >= ids.shape[1] - torch.tensor(lengths)[:, None]
    return ids * mask, mask.long()
