"""The Transformer of 2017, with another mechanism, translates a small synthetic language.

    python examples/translate.py --attention diff_v2

A sentence is translated word by word with a fixed dictionary, and its order is reversed: the
decoder has to find each word in the encoder's output. Training is by transformers' Seq2SeqTrainer,
translations are by beam search. Encoder, decoder and cross-attention have the same mechanism here:
any except `dint`, `delta`, `gru` and `lstm`, which cannot be cross-attention.
"""

import argparse
import tempfile

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from antiphase import AntiphaseForConditionalGeneration, transformer_2017

PAD, END, FIRST, WORDS = 0, 2, 3, 16  # 1 starts sequences in the preset, and is not used here
LONGEST = 6


def sentences(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Return sentences of 3 to 6 words and their translations, each with the end token."""
    dictionary = torch.randperm(WORDS, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    examples = []
    for _ in range(count):
        length = int(torch.randint(3, LONGEST + 1, (), generator=generator))
        words = torch.randint(WORDS, (length,), generator=generator)
        source, target = words + FIRST, dictionary[words].flip(0) + FIRST
        end = torch.tensor([END])
        examples.append({"input_ids": source, "labels": torch.cat([target, end])})
    return examples


def collate(examples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Pad sentences, and translations with -100, which the loss ignores."""
    ids = pad_sequence([e["input_ids"] for e in examples], True, PAD)
    labels = pad_sequence([e["labels"] for e in examples], True, -100)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


def correct(prediction) -> dict[str, float]:
    """Return the fraction of translations without a mistake, the end token included."""
    made, labels = (torch.as_tensor(t) for t in (prediction.predictions, prediction.label_ids))
    made = made[:, 1:]  # without the start token
    made = torch.nn.functional.pad(made, (0, labels.shape[1] - made.shape[1]), value=PAD)
    right = (made == labels) | (labels <= PAD)  # padding, or -100
    return {"correct": float(right.all(1).float().mean())}


def main() -> None:
    """Train, then translate new sentences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attention", default="diff_v2", help="of encoder, decoder and between")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sentences", type=int, default=128, help="that are translated at the end")
    options = parser.parse_args()
    torch.manual_seed(0)
    config = transformer_2017(
        "nano", options.attention, vocab_size=FIRST + WORDS, hidden_size=64, residual_dropout=0.0
    )
    model = AntiphaseForConditionalGeneration(config)
    optimizer = torch.optim.AdamW(model.parameter_groups(weight_decay=0.01), lr=2e-3)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    with tempfile.TemporaryDirectory() as folder:
        arguments = Seq2SeqTrainingArguments(
            folder,
            max_steps=options.steps,
            per_device_train_batch_size=64,
            per_device_eval_batch_size=64,
            predict_with_generate=True,
            generation_num_beams=3,
            generation_max_length=LONGEST + 2,
            logging_steps=50,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Seq2SeqTrainer(
            model,
            arguments,
            train_dataset=sentences(64 * options.steps, seed=1),
            eval_dataset=sentences(options.sentences, seed=2),
            data_collator=collate,
            compute_metrics=correct,
            optimizers=(optimizer, warm_up),
        )
        trainer.train()
        result = trainer.evaluate()
    print(
        f"{options.attention}: {result['eval_correct']:.2f} of new sentences translated correctly"
    )


if __name__ == "__main__":
    main()
