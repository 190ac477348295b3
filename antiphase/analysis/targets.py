"""What `antiphase analyze` works on: a model, and token sequences for it, from a user's names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from antiphase.analysis.ground_truth import GroundTruth, ground_truth, without_answers
from antiphase.models import AntiphaseForCausalLM
from antiphase.models.locate import locate_model
from antiphase.tasks import task as task_of
from antiphase.tasks.text.corpus import documents
from antiphase.training import Recipe, load_recipe

TEXT_ROWS = 64  # rows captured of a sequence of natural-language text, at its end


@dataclass
class AnalysisTarget:
    """A model with token sequences, and where its attention should go.

    Attributes:
        title: the name that the user gave.
        model: the model, for inference.
        ids: token ids, [B, T].
        truth: the rows to look at, and what their keys are.
        tokens: token strings of the first sequence, [T].
        validation: other sequences of the task and their ground truth, to choose the retrieval
            heads on; None for text.
    """

    title: str
    model: Any
    ids: Tensor
    truth: GroundTruth
    tokens: list[str]
    validation: tuple[Tensor, GroundTruth] | None = None


def load_target(
    name: str, *, text: list[str] | None, task: str | None, sequences: int, length: int | None
) -> AnalysisTarget:
    """Load a model and make sequences for it.

    Args:
        name: a shipped model, `smollm2`, a run folder, a model folder or a hub name.
        text: natural-language text to use: files, globs, folders or `stdlib`. Default: the
            synthetic task of the run's recipe; for models without one, `stdlib`.
        task: synthetic task in place of the recipe's.
        sequences: number of sequences.
        length: tokens per sequence; default: the task's own, 256 for language runs, 512 for
            foreign models.

    Raises:
        ValueError: the model cannot be loaded, has no tokenizer for text, or its vocabulary is too
            small for the task.
    """
    folder = Path(locate_model(name))
    recipe = training_recipe(folder)
    disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: cannot be loaded as a causal model ({error})") from error
    foreign = not (recipe or isinstance(model, AntiphaseForCausalLM))
    if task is not None and (text is not None or foreign or (recipe and recipe.task == "language")):
        raise ValueError(
            f"--task {task}: {name} is analysed on text, which has no synthetic task; leave it out"
        )
    if text is not None or foreign:
        return _text_target(name, model, folder, text or ["stdlib"], sequences, length or 512)
    kind, options = task or "needle", {}
    if recipe is not None:
        if recipe.task == "language":
            return _text_target(name, model, folder, ["stdlib"], sequences, length or 256)
        if task in (None, recipe.task):
            kind, options = recipe.task, dict(recipe.task_options)
    if length is not None:
        options["length"] = length
    dataset = task_of(kind)(split="test", size=sequences, **options)
    examples = dataset.examples(range(sequences))
    if examples.tokens.max() >= model.config.vocab_size:
        raise ValueError(
            f"{name}: has a vocabulary of {model.config.vocab_size}, the task {kind} uses "
            f"{examples.tokens.max() + 1}; give the run that trained it, or --text"
        )
    others = task_of(kind)(split="validation", size=sequences, **options).examples(range(sequences))
    return AnalysisTarget(
        name,
        model,
        torch.from_numpy(examples.tokens),
        ground_truth(examples),
        [dataset.id_to_token[token] for token in examples.tokens[0]],
        (torch.from_numpy(others.tokens), ground_truth(others)),
    )


def training_recipe(folder: Path) -> Recipe | None:
    """Return the recipe that a model folder was trained with: inside it, or in its run folder."""
    places = (folder / "recipe.yaml", folder.parent / "recipe.yaml")
    return next((load_recipe(str(path)) for path in places if path.is_file()), None)


def _text_target(
    name: str, model: Any, folder: Path, sources: list[str], sequences: int, length: int
) -> AnalysisTarget:
    """Return natural-language text in sequences [B, T] of the model's own tokenizer."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{folder}: has no tokenizer, so it cannot be analysed on text ({error})"
        ) from error
    ids = _tokenized(tokenizer, sources, sequences, length)
    tokens = [tokenizer.decode([token]) for token in ids[0].tolist()]
    return AnalysisTarget(name, model, ids, without_answers(ids, TEXT_ROWS), tokens)


def _tokenized(tokenizer: Any, sources: list[str], sequences: int, length: int) -> Tensor:
    """Return the text of the sources as token ids [B, T], with fewer sequences if it is short."""
    found: list[int] = []
    for document in documents(sources):
        found += tokenizer(document.text)["input_ids"]
        if len(found) >= sequences * length:
            return torch.tensor(found[: sequences * length]).view(sequences, length)
    complete = len(found) // length
    if complete == 0:
        raise ValueError(
            f"--text: {', '.join(sources)} has {len(found)} tokens, fewer than one sequence of "
            f"{length}"
        )
    return torch.tensor(found[: complete * length]).view(complete, length)
