"""Unchain a pretrained model: measure it, train it, measure it again, and keep a plain model.

The training is an ordinary run (`antiphase.training`) in the same folder. Beside its files:

before-*.json   scores of the base model        results.json   before and after, value by value
README.md       the run's card with a table     change.png     before and after, as a plot
"""

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from antiphase.analysis.before_after import (
    BeforeAfterOptions,
    ModelScores,
    decoding_speeds,
    operation_sizes,
    score_model,
)
from antiphase.analysis.before_after_plots import draw_change
from antiphase.analysis.before_after_table import COLUMNS, operation_line, result_rows
from antiphase.evaluation.benchmark_data import require_files
from antiphase.evaluation.evaluate import (
    ModelEvaluation,
    evaluate_model,
    require_engine,
)
from antiphase.evaluation.report import summarise
from antiphase.evaluation.suite.registry import find_benchmarks
from antiphase.experiments.report.markdown import cells_table
from antiphase.options import build
from antiphase.pretrained.adapter import UnchainedModel
from antiphase.pretrained.base_model import BaseModel, load_base
from antiphase.pretrained.methods import METHODS
from antiphase.tasks import Language
from antiphase.tasks.word_needles import WordNeedles
from antiphase.training import Recipe, create_run, environment, load_recipe, resume
from antiphase.training.checkpoints import read_json, write_atomic
from antiphase.training.components import dataset, set_up_machine
from antiphase.training.digests import short_digest, weights_digest
from antiphase.training.locks import exclusive_lock
from antiphase.training.provenance import CORPUS, START, check_corpus, check_start
from antiphase.training.recipe import apply_settings, parse_settings
from antiphase.training.run import RECIPE
from antiphase.training.run_card import write_run_card
from antiphase.training.stopping import StoppedError

RESULTS = "results.json"
LOCK = ".unchain.lock"
BEFORE_LOCK = ".before.lock"  # where the base model's scores are kept
EVALUATION = "evaluation."  # prefix of settings that are no fields of the recipe
FREE = ("log_every", "checkpoint_every", "threads")  # may differ when a run is resumed

SECTION = """## Before and after

{description}: {trained:,} parameters trained for {steps} steps of {batch_size} x {length} tokens
({tokens:,} in total).

{table}
{operation}
![before and after](change.png)

Held-out text: {sequences} sequences of {length} tokens of the same sources, never trained on.
Needles: {questions} questions in words, {needles} needles in at most {question_length} tokens.
Intervals are 95%, over sequences or questions; one run says nothing about another seed.

```python
{imports}from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("model")
```
"""


def unchain_settings(
    settings: list[str],
    *,
    text: list[str] | None = None,
    recipe: Recipe | None = None,
    evaluation: dict[str, Any] | None = None,
    **fields: Any,
) -> tuple[Recipe, BeforeAfterOptions]:
    """Return a recipe with changes, and what is measured.

    Args:
        settings: `name=value` texts: fields of the recipe, or `evaluation.name=value`.
        text: sources to train on.
        recipe: to change; default: the built-in recipe `unchain`.
        evaluation: options of the measurement, unless `settings` has others.
        **fields: of the recipe; None leaves one as it is.

    Raises:
        ValueError: a name does not exist, or a value is invalid.
    """
    recipe = recipe or load_recipe("unchain")
    changes = {name: value for name, value in fields.items() if value is not None}
    if text is not None:
        changes["task_options"] = {**recipe.task_options, "text": text}
    measured = [s.removeprefix(EVALUATION) for s in settings if s.startswith(EVALUATION)]
    others = [s for s in settings if not s.startswith(EVALUATION)]
    given = {**(evaluation or {}), **parse_settings(measured)}
    options = build("evaluation", BeforeAfterOptions, given)
    return apply_settings(recipe.changed(**changes), others), options


def unchain_run(
    recipe: Recipe,
    options: BeforeAfterOptions,
    folder: Path,
    *,
    quiet: bool = False,
    keep_model: bool = True,
    shared: Path | None = None,
) -> dict[str, Any]:
    """Measure, train and measure again, or resume that where it was interrupted.

    Args:
        recipe: of the training, with a `start` and the language task.
        options: how much is measured.
        folder: of the run.
        quiet: print nothing.
        keep_model: keep the trained model, and write plot and card.
        shared: folder where the runs of one study keep the base model's scores.

    Returns:
        The results, as stored in results.json.

    Raises:
        ValueError: the run is impossible, or the folder holds another one.
        StoppedError: a signal interrupted the training; the same call resumes it.
    """
    _require_same_settings(folder, recipe, options)
    if (folder / RESULTS).is_file():
        return read_results(folder)
    if recipe.start is None:
        raise ValueError("start: is not set; unchaining needs a pretrained model")
    require_benchmarks(options)
    set_up_machine(recipe)
    base = load_base(recipe.start)
    needles = WordNeedles(base.tokenizer, options.question_length, options.needles)
    held_out = _held_out(recipe, base, options.sequences)
    if not all((folder / name).is_file() for name in (RECIPE, START)):
        create_run(recipe, folder, force=(folder / RECIPE).is_file())  # a record's, without a model
    with exclusive_lock(folder / LOCK):
        if (folder / RESULTS).is_file():  # another process was faster
            return read_results(folder)
        _check_origins(folder, recipe, base, held_out)
        write_atomic(folder / RECIPE, recipe.as_yaml())  # with what may differ
        _print(quiet, f"measuring {recipe.start}, on {len(held_out)} sequences and questions")
        before = _before(recipe, options, folder, shared or folder, base, held_out, needles)
        del base
        _train(folder, quiet)
        _print(quiet, "measuring it after training")
        plain = load_base(str(folder / "model")).model
        results = {
            "recipe": recipe.as_dict(),
            "evaluation": asdict(options),
            "environment": environment(),
            "trained_parameters": read_json(folder / START)["trained_parameters"],
            "lam": _lambdas(folder),
            "operation": _operation(folder, recipe.start, held_out),
            "before": before.as_json(),
            "after": score_model(plain, held_out, needles, options.questions).as_json(),
        }
        if options.benchmarks:
            results["benchmarks"] = _benchmarks(
                options, recipe.start, folder, shared or folder, quiet
            )
        if keep_model:
            results["tokens_per_second"] = decoding_speeds([load_base(recipe.start).model, plain])
            draw_change(results, folder / "change.png")
            write_run_card(folder, recipe, _section(results, held_out.length))
        write_atomic(folder / RESULTS, json.dumps(results, indent=1))
        for name in ("checkpoints",) if keep_model else ("checkpoints", "model", "adapter"):
            shutil.rmtree(folder / name, ignore_errors=True)
    return results


def require_benchmarks(options: BeforeAfterOptions) -> None:
    """Raise unless the benchmarks that are measured can be evaluated here."""
    if options.benchmarks:
        require_engine()
        for benchmark in find_benchmarks(options.benchmarks):
            require_files(benchmark.name, benchmark.files)


def read_results(folder: Path) -> dict[str, Any]:
    """Return the results of a finished run."""
    found = read_json(folder / RESULTS)
    if lacking := [
        n for n in ("recipe", "evaluation", "operation", "before", "after") if n not in found
    ]:
        raise ValueError(
            f"{folder / RESULTS}: has no {lacking[0]}; delete the file and run again to measure"
        )
    return found


def _require_same_settings(folder: Path, recipe: Recipe, options: BeforeAfterOptions) -> None:
    if not (folder / RECIPE).is_file():
        return
    stored = load_recipe(str(folder / RECIPE)).as_dict()
    own = recipe.as_dict()
    if (folder / RESULTS).is_file():
        measured = asdict(BeforeAfterOptions()) | read_results(folder)["evaluation"]
        stored |= {EVALUATION + n: v for n, v in measured.items()}
        own |= {EVALUATION + n: v for n, v in asdict(options).items()}
    for name, value in own.items():
        if name not in FREE and stored.get(name) != value:
            raise ValueError(
                f"{folder}: was started with {name}={stored.get(name)!r}, not {value!r}; resume "
                "with the same settings, or give another --out"
            )


def check_study(root: Path, recipe: Recipe) -> None:
    """Raise if the folder of a study holds runs of other weights or another text."""
    assert recipe.start is not None
    base = load_base(recipe.start)
    held_out = _held_out(recipe, base, 1)
    root.mkdir(parents=True, exist_ok=True)
    _check_origins(root, recipe, base, held_out)


def _check_origins(folder: Path, recipe: Recipe, base: BaseModel, data: Language) -> None:
    check_corpus(folder, recipe, data)
    check_start(folder, recipe, {"weights": weights_digest(base.model)})


def _held_out(recipe: Recipe, base: BaseModel, size: int) -> Language:
    """Return sequences of the test split, the same for every seed."""
    found = dataset(recipe.changed(seed=0), "test", size, base.location)
    if not isinstance(found, Language):
        raise ValueError(f"task: got {recipe.task!r}, expected language")
    return found


def _before(
    recipe: Recipe,
    options: BeforeAfterOptions,
    folder: Path,
    kept_in: Path,
    base: BaseModel,
    held_out: Language,
    needles: WordNeedles,
) -> ModelScores:
    """Score the base model, or read the scores if it has been done."""
    corpus = read_json(folder / CORPUS)
    text = corpus.get("text_sha256", corpus.get("sha256"))  # the second of earlier versions
    identity = [read_json(folder / START)["weights"], text]
    name = short_digest([identity, recipe.task_options, asdict(options)])
    path = kept_in / f"before-{name}.json"
    with exclusive_lock(kept_in / BEFORE_LOCK):  # another run of the study finds it measured
        if path.is_file():
            return ModelScores.from_json(read_json(path))
        scores = score_model(base.model, held_out, needles, options.questions)
        write_atomic(path, json.dumps(scores.as_json()))
        return scores


def _benchmarks(
    options: BeforeAfterOptions, start: str, folder: Path, kept_in: Path, quiet: bool
) -> dict[str, Any]:
    """Evaluate the base model and the trained one on the same items of benchmarks."""
    settings = options.of_benchmarks()

    def evaluated(name: str, place: str, within: Path) -> ModelEvaluation:
        base = load_base(place)
        where = within / "benchmarks"
        return evaluate_model(base.model, base.tokenizer, name, settings, where, quiet=quiet)

    with exclusive_lock(kept_in / BEFORE_LOCK):  # once for all runs of a study
        before = evaluated("before", start, kept_in)
    return summarise([before, evaluated("after", str(folder / "model"), folder)], settings)


def _train(folder: Path, quiet: bool) -> None:
    try:
        resume(folder, quiet=quiet)
    except StoppedError as stopped:
        stopped.advice = "run the same command again to resume"
        raise


def _lambdas(folder: Path) -> list[float]:
    """Return lam per layer at the end, of an adapter that has it."""
    path = folder / "adapter" / "adapter_config.json"
    return list(read_json(path).get("lam", [])) if path.is_file() else []


def _operation(folder: Path, start: str, held_out: Language) -> list[float]:
    """Return the size of DEX's operation per sequence; nothing for a method without it."""
    if not _lambdas(folder):
        return []
    model = UnchainedModel.from_pretrained(load_base(start).model, folder / "adapter")
    return operation_sizes(model, held_out).tolist()


def _section(results: dict[str, Any], length: int) -> str:
    """Return the section of the run's card with the scores before and after."""
    recipe = results["recipe"]
    operation = operation_line(results)
    return SECTION.format(
        **results["evaluation"],
        description=METHODS[recipe["method"]].description,
        trained=results["trained_parameters"],
        steps=recipe["steps"],
        batch_size=recipe["batch_size"],
        length=length,
        tokens=recipe["steps"] * recipe["batch_size"] * length,
        table=cells_table(COLUMNS, result_rows(results)),
        operation=f"\n{operation.capitalize()}.\n" if operation else "",
        imports="import antiphase.models  # its class\n" if recipe["method"] == "v2" else "",
    )


def _print(quiet: bool, what: str) -> None:
    if not quiet:
        print(f"antiphase: {what}", file=sys.stderr, flush=True)
