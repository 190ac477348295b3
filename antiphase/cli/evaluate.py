"""`antiphase evaluate`: a model, or two side by side, on public benchmarks."""

from pathlib import Path
from typing import Annotated, Optional

import typer

from antiphase.cli.options import (
    AsJson,
    Quiet,
    list_option,
    require_at_least,
    require_output_folder,
    require_packages,
)
from antiphase.cli.output import Output, listing


def evaluate(
    model: Annotated[
        Optional[str],
        typer.Argument(help="a model or run folder, a shipped model, smollm2, or a hub name"),
    ] = None,
    other: Annotated[
        Optional[str], typer.Argument(help="a second model: paired differences to the first")
    ] = None,
    tasks: Annotated[
        Optional[str], typer.Option(help="names, separated by commas; see --list")
    ] = None,
    limit: Annotated[int, typer.Option(help="number of items per task; 0 for all")] = 200,
    out: Annotated[Path, typer.Option(help="folder of the results")] = Path("runs/evaluate"),
    lengths: Annotated[
        Optional[str], typer.Option(help="of needle's haystacks, in words: 100,200,400,800")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16")] = "float32",
    batch_size: Annotated[int, typer.Option(help="number of requests per forward pass")] = 1,
    chat: Annotated[
        bool, typer.Option("--chat", help="put prompts into the tokenizer's chat template")
    ] = False,
    list_tasks: Annotated[bool, list_option("the tasks")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on benchmarks; the same command resumes a run that was stopped."""
    output = Output(quiet=quiet, as_json=as_json)
    from antiphase.evaluation.suite.registry import BENCHMARKS, find_benchmarks

    if list_tasks:
        entries = {name: found.summary for name, found in BENCHMARKS.items()}
        listing(output, entries, "task", "summary")
        return
    if model is None:
        raise ValueError("model: none was given; name one, or list the tasks with --list")
    names = None if tasks is None else [name.strip() for name in tasks.split(",")]
    if names is not None:
        find_benchmarks(names)
    require_at_least(0, limit=limit)
    require_at_least(1, batch_size=batch_size)
    require_output_folder("--out", out)
    require_packages("antiphase evaluate", "evaluate", "lm_eval")
    from antiphase.evaluation.evaluate import EvaluationOptions, evaluate_named
    from antiphase.evaluation.report import (
        skipped_lines,
        table_columns,
        table_rows,
        write_report,
    )
    from antiphase.models.locate import locate_model

    defaults = EvaluationOptions()
    options = EvaluationOptions(
        tasks=defaults.tasks if names is None else names,
        limit=limit or None,
        lengths=defaults.lengths if lengths is None else _numbers("--lengths", lengths),
        dtype=dtype,
        batch_size=batch_size,
        chat=chat,
    )
    models = [name for name in (model, other) if name is not None]
    for name in models:
        locate_model(name)  # a wrong name is found before any work
    evaluations = [evaluate_named(name, options, out, quiet=quiet or as_json) for name in models]
    summary = write_report(evaluations, options, out)
    output.rows(table_columns(summary), table_rows(summary))
    for line in skipped_lines(summary):
        output.note(line)
    output.wrote(out / "results.json")
    output.json(summary)


def _numbers(option: str, given: str) -> list[int]:
    try:
        return [int(number) for number in given.split(",")]
    except ValueError as error:
        raise ValueError(
            f"{option}: got {given!r}, expected whole numbers separated by commas"
        ) from error
