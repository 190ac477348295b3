"""`antiphase train`: train a model from a recipe, resume a run, or train a sweep of runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from antiphase.cli.engines import (
    Address,
    EngineName,
    ResultsUrl,
    copy_study,
    open_engine,
    require_engine_options,
)
from antiphase.cli.errors import Interrupted
from antiphase.cli.options import (
    AsJson,
    Quiet,
    list_option,
    require_above,
    require_output_folder,
    set_option,
)
from antiphase.cli.output import Output

if TYPE_CHECKING:
    from antiphase.training.recipe import Recipe


def train(
    recipe: Annotated[
        Optional[str], typer.Argument(help="a built-in recipe or a YAML file; see --list")
    ] = None,
    out: Annotated[
        Optional[Path],
        typer.Option(
            help="folder; default: runs/RECIPE-MECHANISM-SEED, or runs/sweep-NAME for a sweep"
        ),
    ] = None,
    resume: Annotated[
        Optional[Path], typer.Option(help="resume this run from its last complete checkpoint")
    ] = None,
    task: Annotated[Optional[str], typer.Option(help="task; see antiphase task --list")] = None,
    attention: Annotated[Optional[str], typer.Option(help="mechanism")] = None,
    size: Annotated[Optional[str], typer.Option(help="preset of the model")] = None,
    steps: Annotated[Optional[int], typer.Option(help="number of optimizer steps")] = None,
    seed: Annotated[Optional[int], typer.Option(help="seed of weights and examples")] = None,
    setting: Annotated[Optional[list[str]], set_option("any field of the recipe")] = None,
    sweep: Annotated[
        Optional[Path],
        typer.Option(help="train many runs: a YAML file with values of fields, and seeds"),
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    results_url: ResultsUrl = None,
    force: Annotated[bool, typer.Option("--force", help="overwrite an existing run")] = False,
    list_recipes: Annotated[bool, list_option("the built-in recipes")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="train nothing; print memory, time and launch commands")
    ] = False,
    devices: Annotated[int, typer.Option(help="with --plan: number of accelerators")] = 8,
    device_memory: Annotated[float, typer.Option(help="with --plan: GB of one")] = 80.0,
    device_tflops: Annotated[
        float, typer.Option(help="with --plan: peak of one in bf16, TFLOP/s")
    ] = 989.4,
    mfu: Annotated[float, typer.Option(help="with --plan: expected fraction of the peak")] = 0.4,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a model from a recipe, resume a run, or train a sweep of runs."""
    from antiphase.training.recipe import Recipe, apply_settings, built_in, load_recipe

    output = Output(quiet=quiet, as_json=as_json)
    if list_recipes:
        output.json([{"recipe": name} for name in built_in()])
        for name in built_in():
            output.line(name)
        return
    fields: dict[str, Any] = {"task": task, "attention": attention, "size": size, "steps": steps}
    fields = {k: v for k, v in {**fields, "seed": seed}.items() if v is not None}
    if resume is not None and (recipe or out or fields or setting or force or sweep):
        raise ValueError("--resume continues a run with its own recipe; it takes no other option")
    if resume is None and recipe is None and task is None:
        raise ValueError("train: give a recipe (see --list), or --task, or --resume RUN")
    if plan and sweep is not None:
        raise ValueError(
            "--plan: trains nothing and plans one run, so it takes no --sweep; give the values of "
            "one run by --set"
        )
    require_output_folder("--out", out)
    require_engine_options(engine, address)
    if sweep is None and (engine, results_url) != ("local", None):
        raise ValueError("--engine and --results-url: are for many runs; give --sweep, too")
    if sweep is not None and force:
        raise ValueError("--force: would overwrite the runs of a sweep; give another --out")
    if resume is None:
        chosen = load_recipe(recipe) if recipe else Recipe()
        chosen = apply_settings(chosen.changed(**fields), setting or [])
    if sweep is not None:
        _sweep(chosen, sweep, out, (engine, address, results_url), output)
        return
    if plan:
        from antiphase.cli.training_plan import print_plan

        if recipe is None:
            raise ValueError("--plan: give a recipe; see --list")
        require_above(0, devices=devices, device_memory=device_memory)
        require_above(0, device_tflops=device_tflops, mfu=mfu)
        hardware = (devices, device_memory * 1e9, device_tflops * 1e12, mfu)
        given = [*(f"{name}={value}" for name, value in fields.items()), *(setting or [])]
        print_plan(output, recipe, chosen, given, hardware)
        return
    from antiphase.training import run
    from antiphase.training.divergence import DivergenceError
    from antiphase.training.run_card import final_scores
    from antiphase.training.run_folder import default_run_folder
    from antiphase.training.stopping import StoppedError

    silent = quiet or as_json
    try:
        if resume is not None:
            folder = run.resume(resume, quiet=silent)
        else:
            place = out or default_run_folder(chosen, recipe)
            folder = run.train(chosen, place, force=force, quiet=silent)
    except DivergenceError as divergence:
        raise ValueError(str(divergence)) from divergence
    except StoppedError as stopped:
        raise Interrupted(str(stopped)) from stopped
    output.wrote(folder)
    if as_json:
        output.json({"run": folder, "scores": final_scores(folder)})


def _sweep(
    recipe: "Recipe",
    sweep: Path,
    out: Path | None,
    where: tuple[str, str | None, str | None],
    output: Output,
) -> None:
    """Train all runs of a sweep, and print them side by side."""
    from antiphase.analysis.compare_runs import compare_runs, comparison_rows
    from antiphase.experiments.sweep import load_sweep, run_sweep

    recipes = load_sweep(sweep, recipe)
    folder = out or Path("runs") / f"sweep-{sweep.stem}"
    engine, copy = open_engine(*where, output)
    trained = run_sweep(recipes, folder, output.progress, engine)
    copy_study(copy, folder, output)
    if trained.finished:
        groups = compare_runs(trained.finished)
        output.rows(*comparison_rows(groups))
        output.json({"sweep": folder, "groups": groups, "errors": trained.errors})
        output.wrote(folder)
    if trained.errors:
        title, error = next(iter(trained.errors.items()))
        raise ValueError(
            f"{len(trained.errors)} of {len(recipes)} runs failed, such as {title}: {error}; the "
            "same command trains them again, and no other"
        )
