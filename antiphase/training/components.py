"""From a recipe to what is trained: data, model and the Trainer's arguments."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import torch
from transformers import TrainingArguments, set_seed
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from antiphase.cpu import guard_bf16
from antiphase.evaluation import score_answers, score_text
from antiphase.models import AntiphaseConfig, AntiphaseForCausalLM, preset
from antiphase.models.presets import PAPER_SIZES
from antiphase.options import fitted, nearest
from antiphase.pretrained.base_model import BaseModel, load_base
from antiphase.pretrained.methods import Tuned, method, method_options
from antiphase.pretrained.structure import trainable
from antiphase.tasks import Language, Task, as_tensors, task
from antiphase.tasks.text.corpus import BUILTIN
from antiphase.training.digests import weights_digest
from antiphase.training.recipe import Recipe
from antiphase.training.trainer import arguments

LANGUAGE = "language"
SCORED_AT_ONCE = 8  # sequences of text; their logits are held in memory together


def dataset(recipe: Recipe, split: str, size: int, tokenizer: str | None = None) -> Task | Language:
    """Return a split of the recipe's task.

    Args:
        recipe: with `task`, `task_options` and `seed`.
        split: train, validation or test.
        size: number of examples.
        tokenizer: of a language task whose options name none.

    Raises:
        ValueError: the task or one of its options does not exist.
    """
    require_corpus(recipe)
    for name in {"split", "size", "seed"} & set(recipe.task_options):
        raise ValueError(f"task_options: {name} is no option of a task; the run itself sets it")
    if recipe.task != LANGUAGE:
        return task(recipe.task)(split=split, size=size, seed=recipe.seed, **recipe.task_options)
    default = {} if tokenizer is None else {"tokenizer": tokenizer}
    options = {**default, **recipe.task_options}
    return Language(split=split, size=size, seed=recipe.seed, **options)


def require_corpus(recipe: Recipe) -> None:
    """Raise if a model of the paper's sizes would be trained on Python's standard library.

    It has a few million tokens, which such a run would repeat thousands of times.
    """
    text = recipe.task_options.get("text", [BUILTIN])
    sources = [text] if isinstance(text, str) else text
    if recipe.task == LANGUAGE and recipe.size in PAPER_SIZES and BUILTIN in sources:
        raise ValueError(
            f"task_options.text: got {BUILTIN!r}, which is far too little text for a model of size "
            f"{recipe.size}; name a corpus: datasets:NAME:CONFIGURATION, files (text, JSONL, "
            "Parquet), or packed:FOLDER of `antiphase data pack`"
        )


def model_config(recipe: Recipe, data: Task | Language) -> AntiphaseConfig:
    """Return the configuration of a new model: a preset, sized to the task.

    Raises:
        ValueError: the recipe has a start, or its fields do not make a model for the task.
    """
    if recipe.start is not None:
        raise ValueError(f"start: {recipe.start!r} has a configuration of its own")
    own = {"attention": "attention", "attention_options": "attention_options"}
    hints = get_type_hints(AntiphaseConfig.__init__)
    for name in recipe.model:
        if name in own:
            raise ValueError(f"model: {name} is a field of the recipe itself, set {own[name]}")
        if name not in hints or name in ("kwargs", "return"):
            known = [n for n in hints if n not in ("kwargs", "return", *own)]
            raise ValueError(
                f"model: has no field {name!r}; its fields are {', '.join(known)}"
                f"{nearest(name, known)}"
            )
    fields = {
        "vocab_size": data.vocab_size,
        "max_position_embeddings": max(2048, data.length),
        **{name: fitted(f"model.{name}", v, hints[name]) for name, v in recipe.model.items()},
    }
    for name, value in fields.items():
        if type(value) is int and value < 1 and not name.endswith("token_id"):
            raise ValueError(f"model.{name}: got {value}, expected at least 1")
    if fields["vocab_size"] < data.vocab_size:
        raise ValueError(
            f"model: vocab_size {fields['vocab_size']} is smaller than the task's {data.vocab_size}"
        )
    return preset(
        recipe.size, recipe.attention, attention_options=recipe.attention_options, **fields
    )


def set_up_machine(recipe: Recipe) -> None:
    """Set the number of threads, and make sure that bf16 products work on this processor."""
    guard_bf16()
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)


@dataclass(frozen=True)
class Components:
    """What a recipe describes, built.

    Attributes:
        data: examples to train on.
        held_out: examples of the validation split.
        tuned: the model, ready to be trained.
        tokenizer: saved with the model; None for a synthetic task.
        start: identity of the pretrained model, None for a new one.
        arguments: of the Trainer.
    """

    data: Task | Language
    held_out: Task | Language
    tuned: Tuned
    tokenizer: Any | None
    start: dict[str, Any] | None
    arguments: TrainingArguments

    @classmethod
    def build(cls, recipe: Recipe, folder: Path, processes: int) -> "Components":
        """Build everything, and raise for whatever is wrong before a run has written anything."""
        if os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true"):
            _reject_fsdp_on_cpu()
        _require_reporters(recipe)
        _require_accuracy(recipe)
        set_up_machine(recipe)
        set_seed(recipe.seed)
        base = None if recipe.start is None else _load_start(recipe)
        tokenizer = None if base is None else base.location
        data = dataset(recipe, "train", recipe.steps * recipe.batch_size, tokenizer)
        held_out = dataset(recipe, "validation", recipe.evaluate_examples, tokenizer)
        if base is None:
            model = AntiphaseForCausalLM(model_config(recipe, data))
            tuned, start = Tuned(model, lambda: model), None
        else:
            tuned, start = _tune(recipe, base, data)
        return cls(
            data,
            held_out,
            tuned,
            data.packed.tokenizer() if isinstance(data, Language) else None,
            start,
            arguments(recipe, folder, processes),
        )

    def scorer(self, recipe: Recipe) -> Callable[[Any], dict[str, float]]:
        """Return the function that scores a model on the held-out examples."""
        held_out = self.held_out
        if isinstance(held_out, Language):
            batch = min(SCORED_AT_ONCE, recipe.batch_size // recipe.accumulate)
            return lambda model: score_text(model, held_out, len(held_out), batch=batch)
        return lambda model: score_answers(model, held_out, len(held_out))


def _load_start(recipe: Recipe) -> BaseModel:
    assert recipe.start is not None
    base = load_base(recipe.start, needs_tokenizer=recipe.task == LANGUAGE)
    if recipe.task != LANGUAGE and base.tokenizer is not None:
        raise ValueError(
            f"task: got {recipe.task!r}, whose tokens mean nothing to {recipe.start!r}, a model "
            f"with a tokenizer; set task={LANGUAGE}, or start from a run on {recipe.task!r}"
        )
    return base


def _tune(recipe: Recipe, base: BaseModel, data: Task | Language) -> tuple[Tuned, dict[str, Any]]:
    """Return the pretrained model as the method trains it, and the identity of its weights."""
    vocab_size = base.model.get_input_embeddings().num_embeddings
    if data.vocab_size > vocab_size:
        raise ValueError(
            f"task: its vocabulary of {data.vocab_size} is larger than that of {recipe.start!r}, "
            f"{vocab_size}; use the model's own tokenizer"
        )
    assert recipe.method is not None
    options = method_options(recipe.method, recipe.method_options, recipe.steps)
    digest = weights_digest(base.model)
    # every seed selects heads on the same sequences
    sample = dataset(
        recipe.changed(seed=0), "validation", recipe.calibration_examples, base.location
    )
    calibration = as_tensors(sample.examples(range(len(sample))))["input_ids"]
    set_seed(recipe.seed)
    tuned = method(recipe.method).prepare(base.model, options, calibration)
    count = sum(p.numel() for p in trainable(tuned.model).values())
    return tuned, {"start": recipe.start, "weights": digest, "trained_parameters": count}


def _require_reporters(recipe: Recipe) -> None:
    for name in recipe.report:
        if name not in INTEGRATION_TO_CALLBACK:
            raise ValueError(
                f"report: got {name!r}, allowed are {', '.join(sorted(INTEGRATION_TO_CALLBACK))}"
            )
        try:
            INTEGRATION_TO_CALLBACK[name]()
        except (RuntimeError, ImportError) as error:
            raise ValueError(f"report: {name!r} needs its package ({error})") from error


def _require_accuracy(recipe: Recipe) -> None:
    if recipe.criterion is not None and recipe.task == LANGUAGE:
        raise ValueError(
            f"criterion: got {recipe.criterion}, an accuracy, but task {LANGUAGE!r} is scored by "
            "its loss; leave out criterion, or train on a synthetic task"
        )


def _reject_fsdp_on_cpu() -> None:
    if not torch.accelerator.is_available():
        raise ValueError(
            "FSDP: the Trainer shards over accelerators only and would silently run plain data "
            "parallelism on CPUs; leave FSDP out, or shard the model itself with fully_shard"
        )
