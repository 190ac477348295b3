"""`antiphase unchain`: change a pretrained model with a little training."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

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
    from antiphase.experiments.dex_plan import DexPlan
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
    steps: Annotated[
        Optional[int],
        typer.Option(
            help="number of optimizer steps; default: 200, with --controls 300 (the least)"
        ),
    ] = None,
    setting: Annotated[
        Optional[list[str]], set_option("a field of the recipe, or evaluation.NAME; e.g. lr=5e-5")
    ] = None,
    out: Annotated[
        Optional[Path],
        typer.Option(
            help="folder; default: runs/unchain/MODEL-METHOD, MODEL-controls with --controls"
        ),
    ] = None,
    controls: Annotated[
        bool,
        typer.Option("--controls", help="run the locked study of DEX and its controls; hours"),
    ] = False,
    lock: Annotated[
        bool,
        typer.Option(
            "--lock", help="with --controls: lock predictions, design and seeds, and exit"
        ),
    ] = False,
    seeds: Annotated[
        Optional[int],
        typer.Option(help="with --controls: how many of the five locked seeds to run; default: 3"),
    ] = None,
    records_file: Annotated[
        Optional[Path],
        typer.Option(
            "--records", help="with --controls: keep finished runs in this file; start from it"
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="with --controls: continue from what the repository has, in docs/results/unchain",
        ),
    ] = False,
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
    given = {"--lock": lock, "--records": records_file is not None, "--resume": resume}
    if not controls and any(given.values()):
        raise ValueError(f"{next(name for name in given if given[name])}: needs --controls")
    if resume and (lock or records_file is not None):
        raise ValueError("--resume: takes the repository's lock and records; leave out the others")
    require_at_least(1, seeds=seeds, steps=steps)
    if controls and method != "dex":
        raise ValueError(f"--method {method}: --controls runs DEX and all controls; leave it out")
    require_output_folder("--out", out)
    require_sources(text)
    from antiphase.models.locate import locate_model

    if controls:
        from antiphase.experiments.dex_plan import SEEDS, trial_plan
        from antiphase.experiments.dex_trial import REPOSITORY
        from antiphase.experiments.study_records import kept_runs

        if seeds is not None and seeds > len(SEEDS):
            raise ValueError(f"--seeds: got {seeds}, the study has {len(SEEDS)} locked ones")
        plan = trial_plan(setting or [], start=model, steps=steps, text=text)
        locate_model(model)  # a wrong name is found before any work
        folder = out or default_unchain_folder(model, "controls")
        if lock:
            _lock(output, plan, folder)
        else:
            if resume:
                records_file = kept_runs(REPOSITORY, folder)
            _controls(output, plan, folder, seeds or 3, records_file)
        return
    from antiphase.experiments.unchain import unchain_settings

    recipe, options = unchain_settings(
        setting or [], start=model, method=method, steps=steps, text=text
    )
    locate_model(model)
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


def _controls(
    output: Output, plan: "DexPlan", folder: Path, seeds: int, records_file: Path | None
) -> None:
    from antiphase.experiments.dex_trial import run_trial

    results = run_trial(plan, folder, output.progress, seeds=seeds, records=records_file)
    _show_controls(output, results, folder)


def _show_controls(output: Output, results: dict[str, Any], folder: Path) -> None:
    from antiphase.experiments import dex_tables

    tables = {name: results[name] for name in ("tuning", "table", "against_kv_only")}
    verdicts = dex_tables.verdict_rows(results)
    tables["verdicts"] = {"columns": dex_tables.VERDICT_COLUMNS, "rows": verdicts}
    for table in tables.values():
        output.rows(table["columns"], table["rows"])
    output.note(dex_tables.status_line(results))
    output.wrote(folder / "controls.md")
    output.json({name: records(t["columns"], t["rows"]) for name, t in tables.items()})


def _lock(output: Output, plan: "DexPlan", folder: Path) -> None:
    from antiphase.experiments.dex_trial import lock_trial

    written = lock_trial(plan, folder)
    count = sum(len(predictions) for predictions in written["predictions"].values())
    output.line(
        f"locked {count} predictions, seeds {written['seeds'][0]} to {written['seeds'][-1]}, at "
        f"{written['time']}: {written['digest'][:16]}"
    )
    output.wrote(folder / "lock.json")
    output.json({key: written[key] for key in ("study_id", "seeds", "digest", "commit", "time")})
