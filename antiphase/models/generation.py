"""Generate text with a saved model and print it as it comes: what `antiphase generate` does."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer
from transformers.utils.logging import disable_progress_bar

from antiphase.cpu import guard_bf16
from antiphase.models.compiled_decoding import compiled_generation
from antiphase.models.locate import locate_model


def generate_text(
    model: str,
    prompt: str,
    *,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
    attn_implementation: str | None = None,
    compiled: bool = False,
) -> str:
    """Generate a continuation of a prompt and stream it to the terminal.

    Args:
        model: a shipped model, a model folder, a run folder or a hub name.
        prompt: text to continue.
        max_new_tokens: number of tokens to generate at most.
        temperature: of sampling; 0 for greedy decoding.
        top_p: of nucleus sampling; not used at temperature 0.
        seed: of sampling.
        attn_implementation: backend of attention; the model's default if None.
        compiled: compile the decoding of one token, which takes a minute or more before the first.

    Returns:
        The prompt and its continuation, without special tokens.

    Raises:
        ValueError: no such model, no tokenizer beside it, or an empty prompt.
    """
    model = locate_model(model)
    guard_bf16()
    tokenizer = _tokenizer(model)
    backend = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    if Path(model).is_dir():
        disable_progress_bar()  # loading takes seconds; a download from the hub shows its progress
    net = AutoModelForCausalLM.from_pretrained(model, **backend).eval()
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    if not inputs["input_ids"].numel():
        raise ValueError("prompt: is empty; give at least one token to continue")
    if int(inputs["input_ids"].max()) >= net.config.vocab_size:
        raise ValueError(
            f"{model}: the tokenizer gave token {int(inputs['input_ids'].max())}, but the model's "
            f"vocabulary size is {net.config.vocab_size}; they do not belong together"
        )
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p}
    if compiled:
        sampling |= compiled_generation()
    torch.manual_seed(seed)
    out = net.generate(
        **inputs,
        **sampling,
        max_new_tokens=max_new_tokens,
        streamer=TextStreamer(tokenizer, skip_special_tokens=True),
        pad_token_id=_pad_token(net.config),
    )
    return tokenizer.decode(out[0], skip_special_tokens=True)


def _pad_token(config: Any) -> int:
    """Return the padding token, or the end token, or 0: generate() needs one."""
    if config.pad_token_id is not None:
        return int(config.pad_token_id)
    end = config.eos_token_id
    return int((end[0] if isinstance(end, list) else end) or 0)


def _tokenizer(model: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(model)
    except (ValueError, OSError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{model}: has no tokenizer that transformers can load; save one in its folder with "
            "tokenizer.save_pretrained(folder)"
        ) from error
