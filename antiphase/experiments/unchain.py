"""Change a pretrained model with a little text: before, training, after, and a plain model.

settings.json   what was done       results.json   before and after, number by number
metrics.jsonl   the loss            adapter/       the small part, if the method has one
checkpoints/    until the end       model/         the plain model, to load
README.md       the card            change.png     before and after, to look at
"""

import dataclasses
import hashlib
import json
import math
import shutil
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import torch
import yaml
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PrinterCallback,
    TrainingArguments,
    set_seed,
)
from transformers.utils.logging import disable_progress_bar

from antiphase.analysis.before_after import Measured, decoding_speeds, measure
from antiphase.analysis.before_after_plots import draw_change
from antiphase.cpu import guard_bf16
from antiphase.experiments.engine import exclusive_lock
from antiphase.experiments.unchain_card import write_unchain_card
from antiphase.models.gguf import NAME as SMOLLM2
from antiphase.models.locate import locate_model
from antiphase.options import fitted
from antiphase.pretrained.dex import DexConfig, operators, set_step
from antiphase.pretrained.methods import METHODS, check, parameters, prepare
from antiphase.tasks import Language
from antiphase.tasks.word_needles import WordNeedles
from antiphase.training import checkpoints
from antiphase.training.adapter_trainer import SmallPartTrainer
from antiphase.training.callbacks import Metrics, Speed, save_whole
from antiphase.training.progress import Progress
from antiphase.training.run import environment
from antiphase.training.stopping import Stop, StoppedError

SETTINGS, RESULTS = "settings.json", "results.json"
LOCK = ".lock"
FREE = ("log_every", "checkpoint_every", "threads")  # may change when a run goes on


@dataclass(frozen=True)
class Settings:
    """Everything that makes a run what it is; optimiser and schedule are the paper's."""

    model: str = SMOLLM2
    method: str = "dex"
    text: list[str] | str = field(default_factory=lambda: ["stdlib"])
    steps: int = 200
    batch_size: int = 4
    length: int = 256
    lr: float = 1e-4
    warmup: float = 0.03
    seed: int = 0
    heads: str | list[list[int]] = "entropy"
    share: float = 0.5
    anneal: int | None = None  # steps; a tenth of the run unless said
    precision: str = "fp32"  # or bf16, where the machine is faster with it
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
        counts = "steps batch_size length calibration held_out questions needles log_every"
        for name in (*counts.split(), "checkpoint_every", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: got {value}, expected at least 1")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr: got {self.lr}, expected more than 0")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup: got {self.warmup}, expected a share of the steps below 1")
        if self.seed < 0:
            raise ValueError(f"seed: got {self.seed}, expected 0 or more")
        if isinstance(self.text, str):
            object.__setattr__(self, "text", [self.text])
        _ = self.dex  # for its refusals

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
    place = locate_model(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place)
        model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"{name}: cannot be loaded as a causal model with a tokenizer ({error})"
        ) from error
    words = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > words:
        raise ValueError(f"{name}: its tokenizer has {len(tokenizer)} tokens, the model {words}")
    return Base(place, model, tokenizer)


def unchain_run(
    settings: Settings,
    folder: Path,
    *,
    quiet: bool = False,
    keep_model: bool = True,
    shared: Path | None = None,
) -> dict[str, Any]:
    """Do a run, or go on with it, in its folder; return its results.

    Runs of one study give a `shared` folder, where the base model's numbers are kept for all.
    """
    _refuse_other_settings(folder, settings)
    if (folder / RESULTS).is_file():
        return read_results(folder)
    guard_bf16()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    base = load_base(settings.model)
    check(settings.method, base.model)
    needles = WordNeedles(base.tokenizer, settings.question_length, settings.needles)
    train_set = _language(settings, base, "train", settings.steps * settings.batch_size)
    held_out = _language(settings, base, "test", settings.held_out)
    texts = _language(settings, base, "validation", settings.calibration)
    content = _content(base.model, train_set)
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder / LOCK):
        _begin(folder, settings, content)
        _tell(quiet, f"measuring {settings.model} as it is, on {len(held_out)} texts and questions")
        before = _before(settings, shared or folder, content, base, held_out, needles)
        set_seed(settings.seed)
        calibration = torch.stack([texts[i]["input_ids"] for i in range(len(texts))])
        tuned = prepare(settings.method, base.model, settings.dex, calibration)
        trained = parameters(tuned.model)
        _train(settings, folder, tuned.model, train_set, quiet)
        if tuned.adapter is not None:
            tuned.adapter.save_pretrained(folder / "adapter")
        lams = [float(o.lam.now().detach()) for o in operators(tuned.model).values()]
        plain = tuned.finish()
        _tell(quiet, "measuring it again")
        after = measure(plain, held_out, needles, settings.questions)
        results = {
            "settings": dataclasses.asdict(settings),
            "environment": environment(),
            "trained_parameters": trained,
            "lam": lams,  # by layer, at the end
            "before": before.as_json(),
            "after": after.as_json(),
        }
        if keep_model:
            save_whole(plain, folder / "model", base.tokenizer)
            results["tokens_per_second"] = decoding_speeds([load_base(settings.model).model, plain])
            draw_change(results, folder / "change.png")
            write_unchain_card(folder, results)
        checkpoints.write_whole(folder / RESULTS, json.dumps(results, indent=1))
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return results


def _tell(quiet: bool, what: str) -> None:
    if not quiet:
        print(f"antiphase: {what}", file=sys.stderr, flush=True)


def read_results(folder: Path) -> dict[str, Any]:
    """Return what a finished run found."""
    found = _read_json(folder / RESULTS)
    if lacking := [name for name in ("settings", "before", "after") if name not in found]:
        raise ValueError(
            f"{folder / RESULTS}: has no {lacking[0]}; delete it, and it is made again"
        )
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: holds a {type(found).__name__}, expected names and values")
    return found


def _refuse_other_settings(folder: Path, settings: Settings) -> None:
    path, own = folder / SETTINGS, dataclasses.asdict(settings)
    if not path.is_file():
        inside = folder.iterdir() if folder.exists() else ()
        if any(not p.name.startswith(".") for p in inside):
            raise ValueError(f"{folder}: holds something that is no run (no {SETTINGS} in it)")
        return
    kept = _read_json(path)
    for name in own:
        if name not in FREE and kept.get(name) != own[name]:
            raise ValueError(
                f"{folder}: was begun with {name}={kept.get(name)!r}, not {own[name]!r}; go on "
                "with the same settings, or give another --out"
            )


def content_of(settings: Settings) -> str:
    """Return a name of the weights and the text that settings lead to."""
    base = load_base(settings.model)
    return _content(base.model, _language(settings, base, "train", 1))


def _content(model: PreTrainedModel, text: Language) -> str:
    """Return a name of the weights and the text, which may change under the same names."""
    digest = hashlib.sha256(str(text.packed.manifest["sha256"]).encode())
    for t in model.state_dict().values():
        digest.update(t.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _begin(folder: Path, settings: Settings, content: str) -> None:
    """Write down what is run; a run that was begun goes on with the same weights and text only."""
    path = folder / SETTINGS
    if path.is_file() and _read_json(path).get("content") != content:
        raise ValueError(
            f"{folder}: was begun with other weights or another text under the same names; give "
            "another --out"
        )
    own = dataclasses.asdict(settings) | {"content": content}
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
    settings: Settings,
    folder: Path,
    content: str,
    base: Base,
    held_out: Language,
    needles: WordNeedles,
) -> Measured:
    """Measure the base model, once."""
    what = [content, settings.length, settings.held_out, settings.questions]
    what += [settings.question_length, settings.needles]
    name = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]
    path = folder / f"before-{name}.json"
    if path.is_file():
        return Measured.of_json(_read_json(path))
    found = measure(base.model, held_out, needles, settings.questions)
    checkpoints.write_whole(path, json.dumps(found.as_json()))
    return found


def _train(
    settings: Settings, folder: Path, model: PreTrainedModel, data: Language, quiet: bool
) -> None:
    speed = Speed(settings.batch_size * settings.length)
    trainer = SmallPartTrainer(model=model, args=_arguments(settings, folder), train_dataset=data)
    trainer.remove_callback(PrinterCallback)
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
