"""The models of an explorer: named on the command line, loaded on first use, a few kept."""

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from antiphase.analysis.capture import capture
from antiphase.analysis.targets import training_recipe
from antiphase.models import AntiphaseForCausalLM
from antiphase.models.gguf import NAME as SMOLLM2
from antiphase.models.locate import locate_model
from antiphase.models.weights import from_diffllama
from antiphase.tasks import task as task_of
from antiphase.training import Recipe

KEPT_MODELS = 6
KEPT_BYTES = 2 * 2**30  # of parameters; one model is kept, however large


@dataclass(frozen=True)
class ModelEntry:
    """A model that may be loaded.

    Attributes:
        name: by which the page selects it.
        source: what `locate_model` takes.
        run: its run folder; None for a model that was not trained by a run.
        label: for people; default: the last part of the name.
    """

    name: str
    source: str
    run: Path | None = None
    label: str = ""

    @property
    def title(self) -> str:
        """Return the name that people see."""
        return self.label or Path(self.name).name or self.name

    def milestones(self) -> dict[int, Path]:
        """Return the folders of the weights that its run kept, by step."""
        found = {}
        for folder in self.run.glob("milestones/step*") if self.run else ():
            step = folder.name.removeprefix("step")
            if step.isdigit() and (folder / "config.json").is_file():
                found[int(step)] = folder
        return dict(sorted(found.items()))

    @property
    def finished(self) -> bool:
        """Return whether the final model exists; of a run that still trains it does not."""
        return self.run is None or (self.run / "model" / "config.json").is_file()

    def folder(self, step: int | None) -> str:
        """Return the folder, or the hub name, to load.

        Raises:
            ValueError: there is no such milestone, or the run has no model yet.
        """
        kept = self.milestones()
        if step is None and not self.finished and kept:
            step = max(kept)
        if step is None:
            return locate_model(self.source)
        if step not in kept:
            steps = ", ".join(map(str, kept)) or "none"
            raise ValueError(f"{self.title}: has no milestone {step}; it has {steps}")
        return str(kept[step])


def model_entry(name: str, source: str = "", label: str = "") -> ModelEntry:
    """Return the entry of a model that a user named.

    Raises:
        ValueError: nothing of that name exists.
    """
    source = source or name
    folder = Path(source).expanduser()
    if (folder / "recipe.yaml").is_file() and not (folder / "config.json").is_file():
        return ModelEntry(name, str(folder), folder, label)  # a run, which may still train
    if source != SMOLLM2:  # it is converted once, on first use
        locate_model(source)
    return ModelEntry(name, source, None, label)


@dataclass(frozen=True)
class ExploredModel:
    """A loaded model.

    Attributes:
        entry: that it was loaded from.
        model: for inference.
        tokenizer: None for models of synthetic tasks.
        recipe: that it was trained with, if it is known.
    """

    entry: ModelEntry
    model: Any
    tokenizer: Any
    recipe: Recipe | None

    @property
    def mechanism(self) -> str:
        """Return the mechanism, or the class of a model of another library."""
        return str(getattr(self.model.config, "attention", type(self.model).__name__))

    @cached_property
    def noise_heads(self) -> list[int]:
        """Return the number of heads with a noise map per layer; 0 where heads have one map."""
        probe = capture(self.model, torch.zeros(2, 4, dtype=torch.long), "all")
        return [0 if m.noise is None else m.noise.shape[1] for m in probe.layers]

    @cached_property
    def vocabulary(self) -> list[str]:
        """Return the token strings by id of a model without a tokenizer."""
        size = self.model.config.vocab_size
        names: list[str] = []
        if self.recipe is not None and self.recipe.task != "language":
            kind = task_of(self.recipe.task)
            names = kind(split="test", size=1, **self.recipe.task_options).id_to_token
        return [*names, *map(str, range(len(names), size))][:size]

    def token_name(self, token: int) -> str:
        """Return a token as text."""
        if self.tokenizer is None:
            return self.vocabulary[token]
        return str(self.tokenizer.decode([token]))

    @property
    def bytes(self) -> int:
        """Return the memory that its parameters take."""
        return sum(p.numel() * p.element_size() for p in self.model.parameters())


def load_model(entry: ModelEntry, step: int | None) -> ExploredModel:
    """Load a model, at its end or at a milestone.

    Raises:
        ValueError: it cannot be loaded as a causal model.
    """
    disable_progress_bar()
    source = entry.folder(step)
    try:
        model = AutoModelForCausalLM.from_pretrained(source).eval()
    except (OSError, ValueError) as error:
        raise ValueError(f"{entry.title}: cannot be loaded as a causal model ({error})") from error
    if type(model).__name__ == "DiffLlamaForCausalLM":
        model = from_diffllama(model).eval()
    if isinstance(model, AntiphaseForCausalLM):
        model.set_attn_implementation("auto")  # its own kernels: edits act on them
    recipe = training_recipe(entry.run / "model" if entry.run else Path(source))
    tokenizer = None
    if recipe is None or recipe.task == "language":
        try:
            tokenizer = AutoTokenizer.from_pretrained(source)
        except (OSError, ValueError, KeyError):
            tokenizer = None  # then its tokens are numbers
    return ExploredModel(entry, model, tokenizer, recipe)


class ModelShelf:
    """Loads models by name and keeps the last used ones.

    Args:
        entries: all models, by name.
        most: so many are kept.
        most_bytes: of parameters are kept.
    """

    def __init__(
        self, entries: Sequence[ModelEntry], most: int = KEPT_MODELS, most_bytes: int = KEPT_BYTES
    ) -> None:
        self.entries: Mapping[str, ModelEntry] = {entry.name: entry for entry in entries}
        self.most, self.most_bytes = most, most_bytes
        self._kept: OrderedDict[tuple[str, int | None], ExploredModel] = OrderedDict()
        self._lock = threading.Lock()
        self._loading: tuple[str, float] | None = None

    def get(self, name: str, step: int | None = None) -> ExploredModel:
        """Return a model, loaded if it is not kept; one is loaded at a time.

        Raises:
            ValueError: there is no such model or milestone, or it cannot be loaded.
        """
        if name not in self.entries:
            raise ValueError(f"{name!r}: is no model of this explorer")
        with self._lock:
            key = (name, step)
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            self._loading = (self.entries[name].title, time.monotonic())
            try:
                found = load_model(self.entries[name], step)
            finally:
                self._loading = None
            self._kept[key] = found
            while len(self._kept) > 1 and (
                len(self._kept) > self.most
                or sum(model.bytes for model in self._kept.values()) > self.most_bytes
            ):
                self._kept.popitem(last=False)
            return found

    def progress(self) -> dict[str, Any] | None:
        """Return which model is being loaded, and for how many seconds; None if none is."""
        loading = self._loading
        if loading is None:
            return None
        return {"loading": loading[0], "seconds": round(time.monotonic() - loading[1], 1)}

    def __len__(self) -> int:
        return len(self._kept)
