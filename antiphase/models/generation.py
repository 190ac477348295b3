"""Text from a saved model, as it is made: what `antiphase generate` does."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

from antiphase.cpu import guard_bf16
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
) -> str:
    """Print a continuation while it is made, and return it. Temperature 0 takes the likeliest."""
    model = locate_model(model)
    guard_bf16()
    chosen = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    net = AutoModelForCausalLM.from_pretrained(model, **chosen).eval()
    tokenizer = _tokenizer(model)
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    if not inputs["input_ids"].numel():
        raise ValueError("prompt: is empty; give at least one token to go on from")
    if int(inputs["input_ids"].max()) >= net.config.vocab_size:
        raise ValueError(
            f"{model}: its tokenizer has a token {int(inputs['input_ids'].max())}, its vocabulary "
            f"ends at {net.config.vocab_size - 1}; they do not belong together"
        )
    drawing: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        drawing = {"do_sample": True, "temperature": temperature, "top_p": top_p}
    torch.manual_seed(seed)
    out = net.generate(
        **inputs,
        **drawing,
        max_new_tokens=max_new_tokens,
        streamer=TextStreamer(tokenizer, skip_special_tokens=True),
        pad_token_id=_pad(net.config),
    )
    return tokenizer.decode(out[0], skip_special_tokens=True)


def _pad(config: Any) -> int:
    if config.pad_token_id is not None:
        return int(config.pad_token_id)
    end = config.eos_token_id
    return int((end[0] if isinstance(end, list) else end) or 0)


def _tokenizer(model: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(model)
    except (ValueError, OSError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{model}: has no tokenizer that transformers can load; save one beside the model with "
            "tokenizer.save_pretrained(folder)"
        ) from error
