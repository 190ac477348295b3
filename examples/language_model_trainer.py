"""A language model with differential attention and the plain Trainer of transformers.

    python examples/language_model_trainer.py --attention diff_v2 --steps 30

The text is source code of Python's standard library, one token per byte, so nothing is downloaded.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments

from antiphase import AntiphaseForCausalLM, preset

LENGTH = 64  # tokens per sequence


def sequences() -> list[dict[str, torch.Tensor]]:
    """Return the sequences of a few source files, [LENGTH] each; the model shifts the labels."""
    files = sorted(Path(json.__file__).parent.glob("*.py"))
    tokens = torch.tensor(list(b"".join(path.read_bytes() for path in files)))
    return [{"input_ids": piece, "labels": piece} for piece in tokens.split(LENGTH)[:-1]]


def main() -> None:
    """Train, then continue a prompt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attention", default="diff_v2")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = AntiphaseForCausalLM(preset("nano", options.attention, vocab_size=256))
    # Lambdas, gains and embeddings must not decay: the model says which parameters they are.
    optimizer = torch.optim.AdamW(model.parameter_groups(weight_decay=0.1), lr=2e-3)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=options.steps,
            per_device_train_batch_size=16,
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=sequences(), optimizers=(optimizer, None))
        result = trainer.train()
    print(f"{options.attention}: mean loss {result.training_loss:.2f} nats per byte")
    prompt = torch.tensor([list(b"def ")])
    out = model.generate(prompt, max_new_tokens=20, do_sample=False, pad_token_id=0)
    print(repr(bytes(out[0].tolist()).decode(errors="replace")))


if __name__ == "__main__":
    main()
