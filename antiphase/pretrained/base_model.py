"""A pretrained causal language model by name, with the tokenizer that belongs to it."""

from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

import antiphase.models  # noqa: F401  (registers this package's models with the Auto classes)
from antiphase.models.attention_interface import use_fused_attention
from antiphase.models.locate import locate_model

LOAD_ERRORS = (OSError, ValueError, KeyError, AttributeError, RuntimeError, SafetensorError)


@dataclass(frozen=True)
class BaseModel:
    """A pretrained model in fp32, on a CPU with our kernels for its attention.

    Attributes:
        location: folder or hub name that `from_pretrained` loads.
        model: the model.
        tokenizer: its tokenizer; None for a model of a synthetic task.
    """

    location: str
    model: PreTrainedModel
    tokenizer: Any | None


def load_base(name: str, *, needs_tokenizer: bool = True) -> BaseModel:
    """Load a model by the name that a user gives.

    Args:
        name: what `locate_model` accepts: a shipped model, `smollm2`, a model folder, a run folder
            or a hub name.
        needs_tokenizer: raise if the model has none.

    Returns:
        The model in fp32, and its tokenizer.

    Raises:
        ValueError: nothing of that name can be loaded, or model and tokenizer do not fit.
    """
    disable_progress_bar()
    location = locate_model(name)
    try:
        model = AutoModelForCausalLM.from_pretrained(location, dtype=torch.float32)
        tokenizer = _tokenizer(location, needs_tokenizer)
    except LOAD_ERRORS as error:
        wanted = "a causal model with a tokenizer" if needs_tokenizer else "a causal model"
        raise ValueError(f"{name}: cannot be loaded as {wanted} ({error})") from error
    use_fused_attention(model)
    vocab_size = model.get_input_embeddings().num_embeddings
    if tokenizer is not None and len(tokenizer) > vocab_size:
        raise ValueError(
            f"{name}: its tokenizer has {len(tokenizer)} tokens, the model's vocabulary "
            f"{vocab_size}; they do not belong together"
        )
    return BaseModel(location, model, tokenizer)


def _tokenizer(location: str, needed: bool) -> Any | None:
    try:
        return AutoTokenizer.from_pretrained(location)
    except LOAD_ERRORS:
        if needed:
            raise
        return None
