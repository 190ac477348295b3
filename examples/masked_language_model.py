"""A masked language model on English text: a bidirectional encoder with differential attention.

    python examples/masked_language_model.py --attention diff_v2

The text is the docstrings of Python's standard library, one token per byte, so nothing is
downloaded. 15% of the bytes are replaced by a mask, and the model predicts them from both
sides.
"""

import argparse
import ast
import sysconfig
import tempfile
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments

from antiphase import AntiphaseForMaskedLM, preset

LENGTH, MASK, MASKED = 32, 0, 0.15  # tokens per sequence; a byte that no text has; fraction
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def docstrings() -> str:
    """Return the docstrings of some modules of the standard library, one after the other."""
    texts = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[d-i]*.py")):
        tree = ast.parse(path.read_bytes())
        found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, DOCUMENTED))
        texts += [text for text in found if text]
    return "\n\n".join(texts)


def sequences(text: str) -> list[dict[str, torch.Tensor]]:
    """Return sequences of LENGTH bytes with masks, and the bytes under them as labels."""
    tokens = torch.tensor(list(text.encode()))
    generator = torch.Generator().manual_seed(0)
    examples = []
    for piece in tokens.split(LENGTH)[:-1]:
        masked = torch.rand(LENGTH, generator=generator) < MASKED
        masked[0] = True  # at least one
        ids, labels = piece.masked_fill(masked, MASK), piece.masked_fill(~masked, -100)
        examples.append({"input_ids": ids, "labels": labels})
    return examples


@torch.no_grad()
def accuracy(model: AntiphaseForMaskedLM, examples: list[dict[str, torch.Tensor]]) -> float:
    """Return the fraction of masked bytes that the model predicts."""
    ids, labels = (torch.stack([e[name] for e in examples]) for name in ("input_ids", "labels"))
    masked = labels != -100
    predicted = model.eval()(ids).logits.argmax(-1)
    return float((predicted == labels)[masked].float().mean())


def main() -> None:
    """Train, then predict the masked bytes of text that was not trained on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attention", default="diff_v2")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    torch.manual_seed(0)
    # Biases: masks, all alike, have to find their neighbours by place; keys need a common part.
    config = preset("nano", options.attention, vocab_size=256, is_causal=False, attention_bias=True)
    model = AntiphaseForMaskedLM(config)
    examples = sequences(docstrings())
    held_out, training = examples[:256], examples[256:]
    optimizer = torch.optim.AdamW(model.parameter_groups(weight_decay=0.1), lr=3e-3)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=options.steps,
            per_device_train_batch_size=64,
            logging_steps=50,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=training, optimizers=(optimizer, None))
        trainer.train()
    spaces = torch.stack([e["labels"] for e in held_out])
    spaces = float((spaces[spaces != -100] == ord(" ")).float().mean())
    print(
        f"{options.attention}: {accuracy(model, held_out):.2f} of the masked bytes predicted "
        f"(always a space: {spaces:.2f})"
    )


if __name__ == "__main__":
    main()
