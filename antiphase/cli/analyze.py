"""`antiphase analyze`: the attention maps of a model, measured."""

import importlib.util
import json
from pathlib import Path
from typing import Annotated, Optional

import typer

from antiphase.cli.options import (
    AsJson,
    Quiet,
    require_at_least,
    require_one_of,
    require_output_folder,
    require_sources,
)
from antiphase.cli.output import Output


def analyze(
    model: Annotated[
        Optional[str],
        typer.Argument(
            help="a model or run folder, a shipped model, smollm2, or a hub name; "
            "default: all shipped models"
        ),
    ] = None,
    task: Annotated[
        Optional[str], typer.Option(help="synthetic task; default: the task of the run")
    ] = None,
    text: Annotated[
        Optional[list[str]],
        typer.Option(help="use text instead: files, globs, folders, stdlib, datasets:NAME"),
    ] = None,
    length: Annotated[Optional[int], typer.Option(help="sequence length in tokens")] = None,
    sequences: Annotated[int, typer.Option(help="number of sequences")] = 16,
    texts: Annotated[Optional[int], typer.Option(hidden=True, help="as --sequences")] = None,
    out: Annotated[Path, typer.Option(help="folder for JSON and figures")] = Path("runs/analysis"),
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure the attention maps of a model: noise, ranks and sinks per layer and head."""
    sequences = sequences if texts is None else texts
    require_at_least(1, sequences=sequences)
    require_at_least(8, length=length)
    require_output_folder("--out", out)
    require_sources(text)
    if task is not None:
        from antiphase.tasks.registry import TASKS

        require_one_of(TASKS, task=task)
    from rich.text import Text

    from antiphase.analysis.analyze import analyze as measure
    from antiphase.analysis.plots import draw_analysis
    from antiphase.analysis.tables import tables
    from antiphase.analysis.targets import load_target
    from antiphase.models.locate import locate_model, shipped_models

    output = Output(quiet=quiet, as_json=as_json)
    if model is not None:
        locate_model(model)  # a wrong name is found before any work
    content = {}
    for name in [model] if model else list(shipped_models()):
        with output.progress.status(Text(f"analyzing {name}")):
            target = load_target(name, text=text, task=task, sequences=sequences, length=length)
            result = measure(
                target.model,
                target.ids,
                target.truth,
                validation=target.validation,
                tokens=target.tokens,
            )
        for table in tables(result, Path(name).name, output.console.width):
            output.table(table)
        folder = out / Path(name).name
        folder.mkdir(parents=True, exist_ok=True)
        content[name] = result.as_json()
        (folder / "analysis.json").write_text(json.dumps(content[name], indent=1))
        if importlib.util.find_spec("matplotlib") is not None:
            draw_analysis(result, folder)
        output.wrote(folder)
    output.json(content)
