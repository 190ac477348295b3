"""The `antiphase` command. Commands are thin: they read options, call the package and print."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.markup import escape

from antiphase.cli.bench import bench
from antiphase.cli.errors import fail

app = typer.Typer(
    help="Noise-cancelling (differential) attention for PyTorch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(bench, name="bench")
console = Console()


@app.command()
def show(
    target: Annotated[str, typer.Argument(help="a preset, or the folder of a saved model")],
    attention: Annotated[
        Optional[str], typer.Option(help="mechanism; default diff_v2, or the saved one")
    ] = None,
    context: Annotated[int, typer.Option(help="tokens before the one that is counted")] = 2048,
    dtype: Annotated[str, typer.Option(help="of the cache: fp32, bf16 or fp16")] = "bf16",
    every: Annotated[bool, typer.Option("--every", help="all mechanisms of this shape")] = False,
) -> None:
    """Say what a model costs: heads, parameters, cache bytes and FLOPs a token."""
    from antiphase.cli import show as tables

    if dtype not in tables.DTYPES:
        fail(f"--dtype: got {dtype!r}, allowed are {', '.join(tables.DTYPES)}")
    if context < 1:
        fail(f"--context: got {context}, expected at least 1")
    config = tables.configuration(target, attention)
    for table in tables.one(config, context, dtype):
        console.print(table)
    if every:
        console.print(tables.every(config, context, dtype))


@app.command()
def generate(
    model: Annotated[str, typer.Argument(help="folder of a saved model, or a hub's name")],
    prompt: Annotated[str, typer.Argument(help="the text to go on from")],
    max_new_tokens: Annotated[int, typer.Option(help="tokens to make")] = 100,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token")] = 0.8,
    top_p: Annotated[float, typer.Option(help="share of probability to draw from")] = 0.95,
    seed: Annotated[int, typer.Option(help="seed of the draw")] = 0,
    attn_implementation: Annotated[
        Optional[str], typer.Option(help="auto, reference, sdpa or fused_cpu")
    ] = None,
) -> None:
    """Go on from a prompt, printed as it is made."""
    import antiphase.models  # noqa: F401
    from antiphase.models.generation import generate_text

    if max_new_tokens < 1:
        fail(f"--max-new-tokens: got {max_new_tokens}, expected at least 1")
    if temperature < 0 or not 0 < top_p <= 1:
        fail(f"--temperature {temperature}, --top-p {top_p}: expected at least 0, and 0 to 1")
    generate_text(
        model,
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        attn_implementation=attn_implementation,
    )


@app.command()
def task(
    name: Annotated[
        str, typer.Argument(help="needle, recall, many_shot, unanswerable, arithmetic")
    ],
    show: Annotated[int, typer.Option(help="how many examples to show")] = 3,
    split: Annotated[str, typer.Option(help="train, validation or test")] = "train",
    seed: Annotated[int, typer.Option(help="seed of the examples")] = 0,
    setting: Annotated[
        Optional[list[str]], typer.Option("--set", help="an option of the task, NAME=VALUE")
    ] = None,
) -> None:
    """Look at examples of a task, in colours."""
    from antiphase.tasks import task as find
    from antiphase.tasks.render import coloured, legend
    from antiphase.training.recipe import parse_setting

    options = dict(parse_setting(text) for text in setting or [])
    for word in {"split", "size", "seed"} & set(options):
        fail(
            f"--set {word}: is no option of the task; there is --{word}"
            if word != "size"
            else "--set size: is no option of the task; --show says how many"
        )
    if show < 1:
        fail(f"--show: got {show}, expected at least 1")
    made = find(name)(split=split, size=show, seed=seed, **options)
    console.print(made.options)
    console.print(f"{made.vocab_size} words; a guess is right {made.chance:.1%} of the time")
    for line in coloured(made, show):
        console.print(line)
    console.print(legend())


@app.command()
def train(
    recipe: Annotated[
        Optional[str], typer.Argument(help="a built-in recipe or a YAML file; see --list")
    ] = None,
    out: Annotated[
        Optional[Path], typer.Option(help="folder of the run; default runs/RECIPE-MECHANISM-SEED")
    ] = None,
    resume: Annotated[
        Optional[Path], typer.Option(help="resume this run from its last complete checkpoint")
    ] = None,
    task: Annotated[Optional[str], typer.Option(help="task")] = None,
    attention: Annotated[Optional[str], typer.Option(help="mechanism")] = None,
    size: Annotated[Optional[str], typer.Option(help="preset of the model")] = None,
    steps: Annotated[Optional[int], typer.Option(help="steps")] = None,
    seed: Annotated[Optional[int], typer.Option(help="seed of weights and examples")] = None,
    setting: Annotated[
        Optional[list[str]], typer.Option("--set", help="any field of the recipe, NAME=VALUE")
    ] = None,
    force: Annotated[bool, typer.Option(help="overwrite an existing run")] = False,
    listing: Annotated[bool, typer.Option("--list", help="name the built-in recipes")] = False,
) -> None:
    """Train a model from a recipe, or resume a run."""
    from antiphase import training

    if listing:
        console.print("\n".join(training.built_in()))
        return
    from antiphase.training.divergence import DivergenceError
    from antiphase.training.recipe import apply_settings
    from antiphase.training.stopping import StoppedError

    try:
        given = {"task": task, "attention": attention, "size": size, "steps": steps, "seed": seed}
        given = {k: v for k, v in given.items() if v is not None}
        if resume is not None:
            if recipe or out or given or setting or force:
                fail("--resume: a run is resumed with its own recipe; leave out the other options")
            folder = training.resume(resume)
        else:
            if recipe is None and task is None:
                fail("give a recipe (see --list), or --task, or --resume RUN")
            chosen = training.load_recipe(recipe) if recipe else training.Recipe()
            chosen = chosen.changed(**given)
            chosen = apply_settings(chosen, setting or [])
            name = f"{Path(recipe).stem if recipe else chosen.task}-{chosen.variant}-{chosen.seed}"
            folder = training.train(chosen, out or Path("runs") / name, force=force)
    except DivergenceError as divergence:
        fail(str(divergence))
    except StoppedError as stopped:
        typer.echo(f"antiphase: {stopped}", err=True)
        raise typer.Exit(130) from stopped
    console.print(f"wrote {folder}", highlight=False, soft_wrap=True)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs")],
    plot: Annotated[Optional[Path], typer.Option(help="draw the curves here (PNG)")] = None,
) -> None:
    """Put runs side by side: parameters, scores with intervals over seeds, speed."""
    from rich.table import Table

    from antiphase.training.compare import compare as groups_of
    from antiphase.training.compare import ended_runs
    from antiphase.training.run_card import draw_curves

    if plot is not None and plot.suffix not in (".png", ".svg", ".pdf"):
        fail(f"--plot: got {plot}, expected a name that ends in .png, .svg or .pdf")
    ended, others = ended_runs(runs)
    for folder, why in others.items():
        typer.echo(f"antiphase: {folder}: {why}; left out", err=True)
    if not ended:
        fail("there is no ended run among these folders")
    groups = groups_of(ended)
    names = [n for n in groups[0].scores if all(n in g.scores for g in groups)]
    table = Table("run", "seeds", "parameters", *names)
    for group in groups:
        scores = [str(group.scores[name]) for name in names]
        table.add_row(group.title, str(len(group.seeds)), f"{group.parameters:,}", *scores)
    console.print(table)
    if plot is not None:
        plot.parent.mkdir(parents=True, exist_ok=True)
        same = len({folder.name for folder in ended}) < len(ended)
        if not draw_curves({str(f) if same else f.name: f for f in ended}, plot):
            fail("--plot: needs matplotlib; pip install 'antiphase[plots]'")
        console.print(f"wrote {plot}")


@app.command()
def analyze(
    model: Annotated[
        Optional[str],
        typer.Argument(
            help="a shipped model, smollm2, a run, a folder or hub name; default: all shipped"
        ),
    ] = None,
    task: Annotated[
        Optional[str], typer.Option(help="made-up task; default: the run's own")
    ] = None,
    text: Annotated[
        Optional[list[str]], typer.Option(help="read this instead: files, globs, folders, stdlib")
    ] = None,
    length: Annotated[Optional[int], typer.Option(help="tokens of a text")] = None,
    texts: Annotated[int, typer.Option(help="how many texts")] = 16,
    out: Annotated[Path, typer.Option(help="folder for JSON and pictures")] = Path("runs/analysis"),
) -> None:
    """Look into a model: maps, noise, ranks and sinks by layer and head."""
    from antiphase.analysis.analyze import analyze as measure
    from antiphase.analysis.plots import draw
    from antiphase.analysis.tables import tables
    from antiphase.analysis.targets import subject
    from antiphase.models.locate import shipped_models

    if texts < 1 or (length is not None and length < 8):
        fail(f"--texts {texts}, --length {length}: expected at least 1, and 8")
    for name in [model] if model else list(shipped_models()):
        with console.status(f"looking into {name}"):
            seen = subject(name, text=text, task=task, texts=texts, length=length)
            found = measure(seen.model, seen.ids, seen.truth)
        for table in tables(found, Path(name).name):
            console.print(table)
        folder = out / Path(name).name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "analysis.json").write_text(json.dumps(found.as_json(), indent=1))
        if importlib.util.find_spec("matplotlib") is not None:
            draw(found, folder)
        console.print(f"wrote {folder}", highlight=False, soft_wrap=True)


@app.command()
def lab(
    full: Annotated[bool, typer.Option("--full", help="all tests; hours")] = False,
    only: Annotated[Optional[str], typer.Option(help="tests by number, e.g. 7,8")] = None,
    listing: Annotated[bool, typer.Option("--list", help="name the tests")] = False,
    report: Annotated[
        Optional[Path], typer.Option(help="write the report of this study again")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder of the study")] = Path("runs/lab"),
    seeds: Annotated[int, typer.Option(help="how many seeds")] = 3,
) -> None:
    """Settle why differential attention works: train, measure, judge, report."""
    from rich.table import Table

    from antiphase.experiments.registry import EXPERIMENTS, experiments
    from antiphase.experiments.report import verdict_rows, write_report
    from antiphase.experiments.study import conduct, load
    from antiphase.experiments.verdicts import READINGS

    if listing:
        for number, kind in EXPERIMENTS.items():
            quick = "  (quick)" if kind.quick else ""
            console.print(f"{number:3}  {kind.title}: {kind.question}{quick}", highlight=False)
        return
    if missing := [m for m in ("plotly", "matplotlib") if importlib.util.find_spec(m) is None]:
        fail(f"the report needs {' and '.join(missing)}; pip install 'antiphase[lab]'")
    if report is not None:
        study, out = load(report), report
    else:
        if seeds < 1:
            fail(f"--seeds: got {seeds}, expected at least 1")
        try:
            numbers = [int(n) for n in only.split(",")] if only else None
        except ValueError:
            fail(f"--only: got {only!r}, expected numbers and commas, e.g. 7,8")
        tests = experiments(numbers, full)
        name = f"tests {only}" if only else "full" if full else "quick"
        study = conduct(tests, out, console, kind=name, quick=name == "quick", seeds=range(seeds))
        study.save(out)
    table = Table("test", *READINGS)
    for row in verdict_rows(study):
        table.add_row(*row)
    console.print(table)
    page = write_report(study, out)
    console.print(f"wrote {page} and report.md", highlight=False, soft_wrap=True)


@app.command()
def unchain(
    model: Annotated[
        str, typer.Argument(help="smollm2, a model folder, a run folder or a hub name")
    ] = "smollm2",
    text: Annotated[
        Optional[list[str]], typer.Option(help="to train on: files, globs, folders, stdlib")
    ] = None,
    method: Annotated[str, typer.Option(help="dex, v2, or a control; see --list")] = "dex",
    steps: Annotated[int, typer.Option(help="optimiser steps")] = 200,
    setting: Annotated[
        Optional[list[str]],
        typer.Option("--set", help="a field of the recipe, or evaluation.NAME; NAME=VALUE"),
    ] = None,
    out: Annotated[Optional[Path], typer.Option(help="folder of the run")] = None,
    controls: Annotated[bool, typer.Option("--controls", help="DEX beside all controls")] = False,
    seeds: Annotated[int, typer.Option(help="how many seeds, with --controls")] = 3,
    listing: Annotated[bool, typer.Option("--list", help="name the methods")] = False,
) -> None:
    """Train a pretrained model on a little text: scores before and after, and a plain model."""
    from antiphase.pretrained.methods import METHODS

    if listing:
        for name, found in METHODS.items():
            console.print(f"{name:13} {found.description}", highlight=False)
        return
    from rich.table import Table

    from antiphase.analysis.before_after_table import COLUMNS, result_rows
    from antiphase.experiments import e14_dex as study
    from antiphase.experiments.unchain import unchain_run, unchain_settings
    from antiphase.training.divergence import DivergenceError
    from antiphase.training.stopping import StoppedError

    recipe, options = unchain_settings(
        setting or [], start=model, method=method, steps=steps, text=text
    )
    if controls:
        if seeds < 1:
            fail(f"--seeds: got {seeds}, expected at least 1")
        if method != "dex":
            fail(f"--method {method}: --controls runs DEX and all controls; leave it out")
        folder = out or Path("runs/unchain/controls")
        results = study.compare_controls(recipe, options, folder, console, range(seeds))
        for columns, rows in (
            (study.COLUMNS, results["table"]),
            (study.COLUMNS, results["against_dex"]),
            (study.VERDICT_COLUMNS, study.verdict_rows(results)),
        ):
            table = Table(*columns)
            for row in rows:
                table.add_row(*row)
            console.print(table)
        console.print(f"wrote {folder / 'controls.md'}", highlight=False, soft_wrap=True)
        return
    folder = out or Path("runs/unchain") / f"{Path(model).resolve().name}-{method}"
    try:
        done = unchain_run(recipe, options, folder)
    except DivergenceError as divergence:
        fail(str(divergence))
    except StoppedError as stopped:
        typer.echo(f"antiphase: {stopped}", err=True)
        raise typer.Exit(130) from stopped
    table = Table(*COLUMNS)
    for row in result_rows(done):
        table.add_row(*row)
    console.print(table)
    console.print(f"wrote {folder / 'model'}", highlight=False, soft_wrap=True)


@app.command("import-weights")
def import_weights(
    source: Annotated[Path, typer.Argument(help="folder of a DiffLlama, official or our model")],
    target: Annotated[Path, typer.Argument(help="folder to write, empty or not there yet")],
    layout: Annotated[
        Optional[str],
        typer.Option(help="diffllama, official or antiphase; default: as config.json says"),
    ] = None,
) -> None:
    """Convert weights: DiffLlama or official ones into ours, ours (diff_v1) into DiffLlama."""
    from antiphase.models.weights import convert

    model = convert(source, target, layout)
    kind, count = type(model).__name__, model.num_parameters()
    console.print(f"wrote {target}: {kind}, {count:,} parameters", highlight=False, soft_wrap=True)


@app.command()
def doctor() -> None:
    """Say which kernels are active on this machine, and why."""
    from antiphase.cli.doctor import findings

    for name, text in findings():
        console.print(f"[bold]{name}[/]  {escape(text)}", highlight=False, soft_wrap=True)


@app.command("build-kernels")
def build_kernels(
    force: Annotated[bool, typer.Option(help="build even if they are there")] = False,
) -> None:
    """Build the C++ kernels ahead of their first use and try them on this machine."""
    from antiphase.ops.fused_cpu import native

    try:
        path = native.build(force=force)
        rates = native.library().rates
    except native.Unavailable as reason:
        fail(f"the kernels could not be built: {reason}")
    speeds = ", ".join(f"{name} {rate:.0f} GFLOP/s" for name, rate in rates.items())
    console.print(f"{path}: {speeds}", highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command line."""
    try:
        app()
    except KeyboardInterrupt:
        typer.echo("antiphase: interrupted", err=True)
        sys.exit(130)
    except (ValueError, OSError) as error:
        typer.echo(f"antiphase: {error}", err=True)
        sys.exit(2)
