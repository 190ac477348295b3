"""Fine-tune an Antiphase model with LoRA (PEFT), and merge the result.

    pip install 'antiphase[pretrained]'
    python examples/finetune_lora.py --steps 30

A nano model of the package was trained to retrieve values by their keys in sequences of 128 tokens.
Here 4% of new parameters adapt it to longer sequences whose distractors all have keys of the
needles' own kind.
"""

import argparse

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

from antiphase.evaluation import score_answers
from antiphase.models.locate import locate_model
from antiphase.tasks import task


def main() -> None:
    """Train the adapter and print the accuracy before and after."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(locate_model("diff_v2"))
    harder = {"length": 256, "keys": 16, "needles": 4, "noise": 1.0, "near": 1.0, "queried": 4}
    train = task("needle")(size=16 * options.steps, **harder)
    held_out = task("needle")(split="test", size=256, **harder)
    before = score_answers(base, held_out)["accuracy"]

    config = LoraConfig(
        r=8,
        lora_alpha=16,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, config)
    model.print_trainable_parameters()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=3e-3)
    for batch in DataLoader(train, batch_size=16):
        model(input_ids=batch["input_ids"], labels=batch["labels"]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    merged = model.merge_and_unload()  # a plain AntiphaseForCausalLM
    after = score_answers(merged, held_out)["accuracy"]
    print(f"accuracy on 256 new sequences of 256 tokens: {before:.2f} -> {after:.2f}")


if __name__ == "__main__":
    main()
