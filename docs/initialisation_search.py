"""The search behind the default initialisation: starts of a model against its held-out loss.

    python docs/initialisation_search.py             # runs what is missing
    python docs/initialisation_search.py --tables    # of what is stored

Every start is the config's `initialisation` with factors on some matrices. Finished runs are kept
beside the page (`results.jsonl`), so that another machine can continue.

Runs on text have 2.5M tokens (`mini`: 0.5M). A first search had 0.6M, in batches of 2048 tokens at
a lower rate; it could not see that a start which is ahead after 150 steps may end behind.
"""

import argparse
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch

from antiphase.evaluation import score_answers, score_text
from antiphase.markdown import markdown_table
from antiphase.models import AntiphaseForCausalLM, preset
from antiphase.models.initialisation import QUERIES_AND_KEYS
from antiphase.tasks import Language, as_tensors, task
from antiphase.training import Recipe
from antiphase.training.schedule import lr_factor

RESULTS = Path(__file__).parent / "results" / "initialisation" / "results.jsonl"
NEEDLES = {"length": 64, "keys": 8, "values": 16, "needles": 4, "repeats": 3, "noise": 1.0}
TEXT = {"length": 256, "text": ["stdlib"]}
TOKENIZERS = {"nano": "bpe:2048", "micro": "bpe:2048", "mini": "bpe:4096"}
STEPS = {"nano": 305, "micro": 305, "mini": 60}
MECHANISMS = ("standard", "diff_v1", "diff_v2")


class Start(NamedTuple):
    """Standard deviations of a new model; head-norm gains are scaled except in `published`."""

    queries_keys: str = "D^-1/2"
    output: str = "0.02 / sqrt(2L)"
    down: str = "0.02"
    embedding: str = "0.02"
    initialisation: str = "scaled"


STARTS = {
    "published": Start("0.02", "0.02", initialisation="published"),
    **{
        f"W_Q, W_K {queries_keys}; W_O {output}": Start(queries_keys, output)
        for queries_keys in ("0.02", "sqrt(0.02 D^-1/2)", "D^-1/2")
        for output in ("0.02", "0.02 / sqrt(2L)")
    },
    "down 0.02 / sqrt(2L)": Start(down="0.02 / sqrt(2L)"),
    "embedding D^-1/2": Start(embedding="D^-1/2"),
}
DEFAULT = "W_Q, W_K D^-1/2; W_O 0.02 / sqrt(2L)"
NARROW = "W_Q, W_K 0.02; W_O 0.02 / sqrt(2L)"


def jobs() -> list[dict[str, Any]]:
    """Return the runs, short ones first. V1 and other sizes have few on text."""
    grid, few = tuple(STARTS)[:7], ("published", NARROW, DEFAULT)
    places = [
        ("needle", "nano", MECHANISMS, tuple(STARTS), (900,)),
        ("needle", "micro", MECHANISMS, ("published", DEFAULT), (900,)),
        ("language", "nano", MECHANISMS, ("published", DEFAULT), (900,)),
        ("language", "mini", MECHANISMS, ("published", DEFAULT), (900,)),
        ("language", "micro", ("standard", "diff_v2"), grid, (900,)),
        ("language", "micro", ("diff_v1",), few, (900,)),
    ]
    # which standard attention does not learn at this size within the usual number of steps
    longer = [
        {**job, "steps": 1000} for job in _jobs(places[1:2]) if job["attention"] == "standard"
    ]
    return [*_jobs(places), *longer]


def _jobs(places: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [
        {"task": where, "size": size, "attention": attention, "start": name, "seed": seed}
        for where, size, mechanisms, names, seeds in places
        for name in names
        for attention in mechanisms
        for seed in seeds
        # without a head norm, both starts at 0.02 are the published one
        if attention == "diff_v1" or name != "W_Q, W_K 0.02; W_O 0.02"
    ]


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one model and return its held-out loss."""
    torch.set_num_threads(1)
    size, seed = job["size"], job["seed"]
    needle = job["task"] == "needle"
    steps, batch = job.get("steps", STEPS[size]), 32
    recipe = (
        Recipe(steps=steps, batch_size=batch, warmup=30, schedule="wsd", lr=1e-3)
        if needle
        else Recipe(steps=steps, batch_size=batch, warmup=50, lr=4e-3, precision="bf16")
    )
    options = NEEDLES if needle else {**TEXT, "tokenizer": TOKENIZERS[size]}
    kind: Any = task("needle") if needle else Language
    data = kind(split="train", size=steps * batch, seed=seed, **options)
    held_out = kind(split="validation", size=256, seed=seed, **options)
    torch.manual_seed(seed)
    model = started(job, data.vocab_size, {"num_attention_heads": 8} if needle else {})
    groups = model.parameter_groups(recipe.weight_decay)
    optimizer = torch.optim.AdamW(groups, recipe.lr, betas=(recipe.beta1, recipe.beta2))
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor(step, recipe))
    for step in range(steps):
        tensors = as_tensors(data.examples(range(step * batch, (step + 1) * batch)))
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.precision == "bf16"):
            loss = model(tensors["input_ids"], labels=tensors["labels"], use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        rates.step()
        optimizer.zero_grad()
    scores = score_answers(model, held_out, 256) if needle else score_text(model, held_out, 256)
    return {**job, "loss": scores["loss"]}


@torch.no_grad()
def started(job: dict[str, Any], vocab_size: int, fields: dict[str, Any]) -> AntiphaseForCausalLM:
    """Return a new model with the start of a job."""
    start = STARTS[job["start"]]
    config = preset(
        job["size"],
        job["attention"],
        vocab_size=vocab_size,
        initialisation=start.initialisation,
        **fields,
    )
    model = AntiphaseForCausalLM(config)
    deviations = {
        "0.02": 0.02,
        "0.02 / sqrt(2L)": 0.02 * (2 * config.num_hidden_layers) ** -0.5,
        "D^-1/2": config.hidden_size**-0.5,
        "sqrt(0.02 D^-1/2)": (0.02 * config.hidden_size**-0.5) ** 0.5,
    }
    wanted = {
        **dict.fromkeys(QUERIES_AND_KEYS, start.queries_keys),
        "o_proj": start.output,
        "down_proj": start.down,
        "embed_tokens": start.embedding,
    }
    for name, module in model.named_modules():
        if (kind := wanted.get(name.split(".")[-1])) is not None:
            module.weight.mul_(deviations[kind] / module.weight.std())
    return model


def main() -> None:
    """Run what is missing, print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", action="store_true", help="of what is stored; train nothing")
    if not parser.parse_args().tables:
        run_missing()
    print(tables(stored()))


def stored() -> list[dict[str, Any]]:
    """Return the results of all finished runs."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [json.loads(line) for line in lines]


def run_missing() -> None:
    """Train what has no stored result."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    known = [{k: v for k, v in result.items() if k != "loss"} for result in stored()]
    todo = [job for job in jobs() if job not in known]
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        for result in pool.imap_unordered(run, todo):
            with RESULTS.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(result, flush=True)


def tables(done: list[dict[str, Any]]) -> str:
    """Return one table per task and size, in Markdown."""
    found = []
    places = [(job["task"], job["size"], job.get("steps", STEPS[job["size"]])) for job in jobs()]
    for where, size, steps in dict.fromkeys(places):
        rows = [
            [start, *(cell(done, where, size, steps, start, name) for name in MECHANISMS)]
            for start in STARTS
        ]
        title = f"{where}, {size}, {steps} steps"
        found.append(markdown_table([title, *MECHANISMS], [row for row in rows if any(row[1:])]))
    return "\n\n".join(found)


def cell(
    done: list[dict[str, Any]], where: str, size: str, steps: int, start: str, attention: str
) -> str:
    """Return the mean loss of the runs of one kind; empty if there is none."""
    wanted = {"task": where, "size": size, "start": start, "attention": attention}
    losses = [
        d["loss"]
        for d in done
        if d.get("steps", STEPS[size]) == steps and all(d[k] == v for k, v in wanted.items())
    ]
    return f"{sum(losses) / len(losses):.3f}" if losses else ""


if __name__ == "__main__":
    main()
