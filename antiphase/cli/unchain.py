"""`antiphase unchain`: change a pretrained model with a little training."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from antiphase.cli.errors import Interrupted
from antiphase.cli.options import (
    AsJson,
    Quiet,
    list_option,
    require_at_least,
    require_one_of,
    require_output_folder,
    require_sources,
    set_option,
)
from antiphase.cli.output import Output, listing, records
from antiphase.training.run_folder import default_unchain_folder

if TYPE_CHECKING:
    from antiphase.analysis.before_after import BeforeAfterOptions
    from antiphase.training import Recipe


def unchain(
    model: Annotated[
        str, typer.Argument(help="smollm2, a model or run folder, or a hub name")
    ] = "smollm2",
    text: Annotated[
        Optional[list[str]],
        typer.Option(help="training text: files, globs, folders, stdlib, datasets:NAME"),
    ] = None,
    method: Annotated[str, typer.Option(help="dex, v2, or a control; see --list")] = "dex",
    steps: Annotated[int, typer.Option(help="number of optimizer steps")] = 200,
    setting: Annotated[
        Optional[list[str]], set_option("a field of the recipe, or evaluation.NAME; e.g. lr=5e-5")
    ] = None,
    out: Annotated[
        Optional[Path], typer.Option(help="folder of the run; default runs/unchain/MODEL-METHOD")
    ] = None,
    controls: Annotated[
        bool, typer.Option("--controls", help="run DEX and all controls, and compare them")
    ] = False,
    seeds: Annotated[
        Optional[int], typer.Option(help="number of seeds, with --controls; default 3")
    ] = None,
    list_methods: Annotated[bool, list_option("the methods")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a pretrained model with DEX or a control, and measure it before and after."""
    from antiphase.pretrained.methods import METHODS

    output = Output(quiet=quiet, as_json=as_json)
    if list_methods:
        descriptions = {name: found.description for name, found in METHODS.items()}
        listing(output, descriptions, "method", "summary")
        return
    require_one_of(METHODS, method=method)
    if seeds is not None and not controls:
        raise ValueError("--seeds: needs --controls; the seed of one run is --set seed=N")
    require_at_least(1, seeds=seeds, steps=steps)
    if controls and method != "dex":
        raise ValueError(f"--method {method}: --controls runs DEX and all controls; leave it out")
    require_output_folder("--out", out)
    require_sources(text)
    from antiphase.experiments.unchain import unchain_settings
    from antiphase.models.locate import locate_model

    recipe, options = unchain_settings(
        setting or [], start=model, method=method, steps=steps, text=text
    )
    locate_model(model)  # a wrong name is found before any work
    if controls:
        folder = out or Path("runs/unchain/controls")
        _compare_controls(output, recipe, options, folder, seeds or 3)
    else:
        _run(output, recipe, options, out or default_unchain_folder(model, method))


def _run(output: Output, recipe: "Recipe", options: "BeforeAfterOptions", folder: Path) -> None:
    from antiphase.analysis.before_after_table import (
        COLUMNS,
        operation_line,
        operation_size,
        result_rows,
    )
    from antiphase.experiments.unchain import unchain_run
    from antiphase.training.divergence import DivergenceError
    from antiphase.training.stopping import StoppedError

    try:
        results = unchain_run(recipe, options, folder, quiet=output.quiet or output.as_json)
    except DivergenceError as divergence:
        raise ValueError(str(divergence)) from divergence
    except StoppedError as stopped:
        raise Interrupted(str(stopped)) from stopped
    rows = result_rows(results)
    output.rows(COLUMNS, rows)
    if line := operation_line(results):
        output.line(line)
    output.wrote(folder / "model")
    output.json(
        {
            "model": folder / "model",
            "operation": operation_size(results),
            "measures": records(COLUMNS, rows),
        }
    )


def _compare_controls(
    output: Output, recipe: "Recipe", options: "BeforeAfterOptions", folder: Path, seeds: int
) -> None:
    from antiphase.experiments import e14_dex as study

    results = study.compare_controls(recipe, options, folder, output.progress, range(seeds))
    tables = {
        "methods": (study.METHOD_COLUMNS, results["table"]),
        "against_dex": (study.COLUMNS, results["against_dex"]),
        "verdicts": (study.VERDICT_COLUMNS, study.verdict_rows(results)),
    }
    for columns, rows in tables.values():
        output.rows(columns, rows)
    output.wrote(folder / "controls.md")
    output.json({name: records(columns, rows) for name, (columns, rows) in tables.items()})
