"""Change a pretrained model with a little text: before, training, after, and a plain model.

settings.json   what was done       results.json   before and after, number by number
metrics.jsonl   the loss            adapter/       the small part, if the method has one
checkpoints/    until the end       model/         the plain model, to load   README.md  the card
"""

import dataclasses
import hashlib
import json
import shutil
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import Sampler, SequentialSampler
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.utils.logging import disable_progress_bar

from antiphase.models.gguf import NAME as SMOLLM2
from antiphase.models.gguf import smollm2
from antiphase.ops.fused_cpu.cpu import guard_bf16
from antiphase.options import fitted
from antiphase.pretrained.card import write_unchain_card
from antiphase.pretrained.dex import DexConfig, set_step
from antiphase.pretrained.measure import Measured, decoding_speeds, measure
from antiphase.pretrained.methods import METHODS, parameters, prepare
from antiphase.pretrained.structure import trainable
from antiphase.tasks import Language
from antiphase.tasks.words import WordNeedles
from antiphase.training import checkpoints
from antiphase.training.progress import Progress
from antiphase.training.run import environment
from antiphase.training.stopping import Stop, StoppedError
from antiphase.training.trainer import collate
from antiphase.training.watch import Metrics, Speed, save_whole

SETTINGS, RESULTS, SMALL = "settings.json", "results.json", "trained.safetensors"


@dataclass(frozen=True)
class Settings:
    """Everything that makes a run what it is; optimiser and schedule are the paper's."""

    model: str = SMOLLM2
    method: str = "dex"
    text: list[str] = field(default_factory=lambda: ["stdlib"])
    steps: int = 200
    batch_size: int = 4
    length: int = 256
    lr: float = 1e-4
    warmup: float = 0.03
    seed: int = 0
    heads: str = "entropy"
    share: float = 0.5
    anneal: int | None = None  # steps; a tenth of the run unless said
    precision: str = "bf16"
    threads: int | None = None
    calibration: int = 8  # texts
    held_out: int = 64  # texts
    questions: int = 40
    question_length: int = 512
    needles: int = 8
    log_every: int = 10
    checkpoint_every: int = 50

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method: got {self.method!r}, allowed are {', '.join(METHODS)}")
        if self.precision not in ("bf16", "fp32"):
            raise ValueError(f"precision: got {self.precision!r}, allowed are bf16, fp32")
        for name in ("steps", "batch_size", "calibration", "held_out", "questions", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 1")
        if not self.lr > 0:
            raise ValueError(f"lr: got {self.lr}, expected more than 0")

    @property
    def dex(self) -> DexConfig:
        """Return DEX's part."""
        anneal = self.anneal if self.anneal is not None else max(1, self.steps // 10)
        return DexConfig(heads=self.heads, share=self.share, anneal=anneal)

    def digest(self) -> str:
        """Return a short name of all of it."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @classmethod
    def of_json(cls, fields: dict[str, Any]) -> "Settings":
        """Return settings from their stored form."""
        hints = get_type_hints(cls)
        return cls(**{name: fitted(name, value, hints[name]) for name, value in fields.items()})


def settings_of(changes: list[str], **fields: Any) -> Settings:
    """Return settings from fields, then `name=value` texts; a field that is None is left."""
    known = [f.name for f in dataclasses.fields(Settings)]
    found = {name: value for name, value in fields.items() if value is not None}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals or name not in known:
            raise ValueError(f"--set: got {change!r}, expected name=value of {', '.join(known)}")
        found[name] = yaml.safe_load(value)
    return Settings.of_json(found)


@dataclass(frozen=True)
class Base:
    """A pretrained model, its tokenizer, and where they came from."""

    place: str
    model: PreTrainedModel
    tokenizer: Any


def load_base(name: str) -> Base:
    """Return a model by the word smollm2, from a folder or by a hub name."""
    disable_progress_bar()
    place = str(smollm2()) if name == SMOLLM2 else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(place)
        model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{name}: is neither {SMOLLM2!r}, nor a folder or hub name of a causal model with a "
            f"tokenizer ({error})"
        ) from error
    return Base(place, model, tokenizer)


def unchain_run(
    settings: Settings, folder: Path, *, quiet: bool = False, keep_model: bool = True
) -> dict[str, Any]:
    """Do a run, or go on with it, in its folder; return its results."""
    folder.mkdir(parents=True, exist_ok=True)
    _same_settings(folder, settings)
    if (folder / RESULTS).is_file():
        return dict(json.loads((folder / RESULTS).read_text(encoding="utf-8")))
    guard_bf16()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    base = load_base(settings.model)
    set_seed(settings.seed)
    train_set = _language(settings, base, "train", settings.steps * settings.batch_size)
    held_out = _language(settings, base, "test", settings.held_out)
    needles = WordNeedles(base.tokenizer, settings.question_length, settings.needles)
    before = _before(settings, folder, base, held_out, needles)
    texts = _language(settings, base, "validation", settings.calibration)
    calibration = torch.stack([texts[i]["input_ids"] for i in range(len(texts))])
    tuned = prepare(settings.method, base.model, settings.dex, calibration)
    trained = parameters(tuned.model)
    _train(settings, folder, tuned.model, train_set, quiet)
    if tuned.adapter is not None:
        tuned.adapter.save_pretrained(folder / "adapter")
    plain = tuned.finish()
    after = measure(plain, held_out, needles, settings.questions)
    results = {
        "settings": dataclasses.asdict(settings),
        "environment": environment(),
        "trained_parameters": trained,
        "before": before.as_json(),
        "after": after.as_json(),
    }
    if keep_model:
        save_whole(plain, folder / "model", base.tokenizer)
        results["tokens_per_second"] = decoding_speeds([load_base(settings.model).model, plain])
        write_unchain_card(folder, results)
    checkpoints.write_whole(folder / RESULTS, json.dumps(results, indent=1))
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return results


def _same_settings(folder: Path, settings: Settings) -> None:
    path, own = folder / SETTINGS, dataclasses.asdict(settings)
    if path.is_file():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if odd := [name for name in own if kept.get(name) != own[name]]:
            raise ValueError(
                f"{folder}: was begun with {odd[0]}={kept.get(odd[0])!r}, not {own[odd[0]]!r}; "
                "go on with the same settings, or give another --out"
            )
    elif any(folder.iterdir()):
        raise ValueError(f"{folder}: holds something that is no run (no {SETTINGS} in it)")
    else:
        checkpoints.write_whole(path, json.dumps(own, indent=1))


def _language(settings: Settings, base: Base, split: str, size: int) -> Language:
    return Language(
        split=split,
        size=size,
        seed=settings.seed if split == "train" else 0,  # every seed is judged on the same texts
        length=settings.length,
        text=settings.text,
        tokenizer=base.place,
    )


def _before(
    settings: Settings, folder: Path, base: Base, held_out: Language, needles: WordNeedles
) -> Measured:
    """Measure the base model once; runs of one study side by side share it."""
    what = [settings.model, settings.text, settings.length, settings.held_out, settings.threads]
    what += [settings.questions, settings.question_length, settings.needles]
    name = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]
    path = folder.parent / f"before-{name}.json"
    try:
        return Measured.of_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        found = measure(base.model, held_out, needles, settings.questions)
        checkpoints.write_whole(path, json.dumps(found.as_json()))
        return found


def _train(
    settings: Settings, folder: Path, model: PreTrainedModel, data: Language, quiet: bool
) -> None:
    speed = Speed(settings.batch_size * settings.length)
    trainer = SmallPartTrainer(model=model, args=_arguments(settings, folder), train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Steps())
    trainer.add_callback(Metrics(folder, speed))
    progress = Progress(f"{settings.method}, seed {settings.seed}", settings.steps)
    if not quiet:
        trainer.add_callback(progress)
    stop = Stop(settings.log_every)
    if threading.current_thread() is threading.main_thread():
        trainer.add_callback(stop)
    last, faults = checkpoints.newest(folder / "checkpoints")
    for name, wrong in faults.items():
        print(f"antiphase: {folder / 'checkpoints' / name}: {wrong}; set aside", file=sys.stderr)
    checkpoints.set_aside(folder / "checkpoints", list(faults))
    try:
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    finally:
        stop.release()
        progress.bar.stop()
    if trainer.state.global_step < settings.steps:
        raise StoppedError(
            f"stopped at step {trainer.state.global_step} of {settings.steps}; the same command "
            "goes on"
        )
    set_step(model, settings.steps)


def _arguments(settings: Settings, folder: Path) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.lr,
        lr_scheduler_type="cosine",
        warmup_steps=max(1, round(settings.warmup * settings.steps)),
        weight_decay=0.0,
        bf16=settings.precision == "bf16",
        logging_steps=settings.log_every,
        save_steps=settings.checkpoint_every,
        save_total_limit=2,
        seed=settings.seed,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
        log_level="error",
    )


class Steps(TrainerCallback):
    """Tell lam(t) the time."""

    def on_step_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Set the optimiser steps that have been made."""
        set_step(model, state.global_step)


class SmallPartTrainer(Trainer):
    """A Trainer whose checkpoints hold what is trained, not the model around it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs, data_collator=collate)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return SequentialSampler(self.train_dataset)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        parts = {name: p.detach().contiguous() for name, p in trainable(self.model).items()}
        save_file(parts, folder / SMALL)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        inner: nn.Module = model or self.model
        own = trainable(inner)
        with torch.no_grad():
            for name, t in load_file(Path(resume_from_checkpoint) / SMALL).items():
                own[name].copy_(t)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        checkpoints.seal(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}")
