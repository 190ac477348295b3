"""What is to be analysed: a model, and texts for it, from what a user names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from antiphase.analysis.analyze import text_truth
from antiphase.analysis.ground_truth import Truth, truth_of
from antiphase.models import AntiphaseForCausalLM
from antiphase.models.locate import locate_model
from antiphase.tasks import task as task_of
from antiphase.tasks.text.corpus import documents
from antiphase.training import load_recipe

ROWS = 64  # of a text, at its end


@dataclass
class Subject:
    """A model with texts, and what it should look at in them."""

    title: str
    model: Any
    ids: Tensor
    truth: Truth


def subject(
    name: str, *, text: list[str] | None, task: str | None, texts: int, length: int | None
) -> Subject:
    """Return a model by a shipped name, a run, a folder or a hub's name, with texts to read."""
    folder = Path(locate_model(name))
    recipe = next(
        (p for p in (folder / "recipe.yaml", folder.parent / "recipe.yaml") if p.is_file()), None
    )
    disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: cannot be loaded as a causal model ({error})") from error
    if text is not None or not (recipe or isinstance(model, AntiphaseForCausalLM)):
        ids = _read(folder, text or ["stdlib"], texts, length or 512)
        return Subject(name, model, ids, text_truth(ids, ROWS))
    kind, options = task or "needle", {}
    if recipe is not None:
        made = load_recipe(str(recipe))
        if made.task == "language":
            ids = _read(folder, text or ["stdlib"], texts, length or 256)
            return Subject(name, model, ids, text_truth(ids, ROWS))
        if task in (None, made.task):
            kind, options = made.task, dict(made.task_options)
    if length is not None:
        options["length"] = length
    examples = task_of(kind)(split="test", size=texts, **options).examples(range(texts))
    if examples.tokens.max() >= model.config.vocab_size:
        raise ValueError(
            f"{name}: has a vocabulary of {model.config.vocab_size}, the task {kind} uses "
            f"{examples.tokens.max() + 1}; give the run that trained it, or --text"
        )
    return Subject(name, model, torch.from_numpy(examples.tokens), truth_of(examples))


def _read(place: Path, sources: list[str], texts: int, length: int) -> Tensor:
    """Return pieces of real text, as the model's own tokenizer reads it."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError) as error:
        raise ValueError(f"{place}: has no tokenizer to read a text with ({error})") from error
    found: list[int] = []
    for document in documents(sources):
        found += tokenizer(document.text)["input_ids"]
        if len(found) >= texts * length:
            return torch.tensor(found[: texts * length]).view(texts, length)
    whole = len(found) // length
    if whole == 0:
        raise ValueError(
            f"--text: {', '.join(sources)} has {len(found)} tokens, fewer than one text of {length}"
        )
    return torch.tensor(found[: whole * length]).view(whole, length)
