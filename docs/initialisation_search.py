"""The search behind the default initialisation: start scales against held-out loss.

    python docs/initialisation_search.py --out runs/initialisation.jsonl

Every start changes the published one (N(0, 0.02) everywhere, head-norm gain 1) by factors on some
matrices and by the initial gain of the head norm. Finished runs are kept in the output file; the
same command goes on with the rest and prints the table.
"""

import argparse
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import torch

from antiphase.attention.parts import HeadNorm
from antiphase.evaluation import score_answers, score_text
from antiphase.models import AntiphaseForCausalLM, preset
from antiphase.tasks import Language, as_tensors, task
from antiphase.training import Recipe
from antiphase.training.schedule import lr_factor

NEEDLES = {"length": 64, "keys": 8, "values": 16, "needles": 4, "repeats": 3, "noise": 1.0}
STEPS = {"nano": 300, "micro": 300, "mini": 150}
TEXT = {"length": 256, "text": ["stdlib"]}
TOKENIZERS = {"nano": "bpe:2048", "micro": "bpe:2048", "mini": "bpe:4096"}


def starts(hidden_size: int, layers: int) -> dict[str, dict[str, float]]:
    """Return the candidates: factors on the published start, and the head norm's gain, by name."""
    depth = (2 * layers) ** -0.5
    unit = hidden_size**-0.5 / 0.02  # to standard deviation D^-1/2: outputs of unit variance
    matched = 0.2 / unit  # about the RMS of a head's output without the norm
    small = {"o_proj": depth, "down_proj": depth}
    return {
        "published": {},
        "depth": small,
        "gain": {"gain": matched},
        "depth + gain": {**small, "gain": matched},
        "qk": {**small, "gain": matched, "q_proj": unit, "k_proj": unit},
        "qk, no depth": {"gain": matched, "q_proj": unit, "k_proj": unit},
        "all inputs": {
            **dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), unit),
            "gain": 0.2,
            "o_proj": depth / unit,
            "down_proj": depth / unit**2,
        },
        "embedding": {**small, "gain": matched, "embedding": unit},
    }


def jobs() -> list[dict[str, Any]]:
    """Return the runs, short ones first."""
    found = []
    for where, size in (
        ("needle", "nano"),
        ("language", "nano"),
        ("language", "micro"),
        ("language", "mini"),
    ):
        for attention in ("standard", "diff_v1", "diff_v2"):
            for name in starts(128, 2):
                if attention != "diff_v1" and "gain" in name:
                    continue  # there is no head norm
                if size == "mini" and name not in ("published", "depth", "depth + gain", "qk"):
                    continue
                seeds = (900, 901) if where == "needle" else (900,)
                for seed in seeds:
                    found.append(
                        {
                            "task": where,
                            "size": size,
                            "attention": attention,
                            "start": name,
                            "seed": seed,
                        }
                    )
    return found


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one model and return its held-out score."""
    torch.set_num_threads(1)
    size, seed = job["size"], job["seed"]
    steps = STEPS[size]
    needle = job["task"] == "needle"
    batch = 32 if needle else 8
    schedule = "wsd" if needle else "cosine"
    recipe = Recipe(steps=steps, batch_size=batch, warmup=30, schedule=schedule)
    options = NEEDLES if needle else {**TEXT, "tokenizer": TOKENIZERS[size]}
    kind: Any = task("needle") if needle else Language
    data = kind(split="train", size=steps * batch, seed=seed, **options)
    held_out = kind(split="validation", size=256, seed=seed, **options)
    heads = {"num_attention_heads": 8} if needle else {}
    config = preset(
        size,
        job["attention"],
        vocab_size=data.vocab_size,
        initialisation="published",
        **heads,
    )
    torch.manual_seed(seed)
    model = AntiphaseForCausalLM(config)
    change(model, starts(config.hidden_size, config.num_hidden_layers)[job["start"]])
    groups = model.parameter_groups(recipe.weight_decay)
    optimizer = torch.optim.AdamW(groups, recipe.lr, betas=(0.9, 0.95))
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor(step, recipe))
    for step in range(steps):
        tensors = as_tensors(data.examples(range(step * batch, (step + 1) * batch)))
        loss = model(tensors["input_ids"], labels=tensors["labels"], use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        rates.step()
        optimizer.zero_grad()
    if needle:
        return {**job, "loss": score_answers(model, held_out, 256)["loss"]}
    return {**job, "loss": score_text(model, held_out, 64)["loss"]}


@torch.no_grad()
def change(model: AntiphaseForCausalLM, start: dict[str, float]) -> None:
    """Change the published start."""
    for name, module in model.named_modules():
        if isinstance(module, HeadNorm) and module.kind == "rms":
            module.gain.fill_(start.get("gain", 1.0))
        elif isinstance(module, torch.nn.Linear):
            module.weight.mul_(start.get(name.split(".")[-1], 1.0))
    model.model.embed_tokens.weight.mul_(start.get("embedding", 1.0))


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs/initialisation.jsonl"))
    path = parser.parse_args().out
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    done = [json.loads(line) for line in lines]
    key = ("task", "size", "attention", "start", "seed")
    known = {tuple(d[k] for k in key) for d in done}
    todo = [job for job in jobs() if tuple(job[k] for k in key) not in known]
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        for result in pool.imap_unordered(run, todo):
            done.append(result)
            with path.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(result, flush=True)
    for where, size in dict.fromkeys((d["task"], d["size"]) for d in done):
        print(f"\n{where}, {size}: held-out loss, mean over seeds")
        mine = [d for d in done if (d["task"], d["size"]) == (where, size)]
        for start in dict.fromkeys(d["start"] for d in mine):
            cells = []
            for attention in ("standard", "diff_v1", "diff_v2"):
                wanted = (start, attention)
                losses = [d["loss"] for d in mine if (d["start"], d["attention"]) == wanted]
                cells.append(f"{sum(losses) / len(losses):9.3f}" if losses else " " * 9)
            print(f"  {start:22}{''.join(cells)}")


if __name__ == "__main__":
    main()
