"""The `antiphase` command. Commands are thin: they read options, call the package and print."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn, Optional

import typer
from rich.console import Console
from rich.markup import escape

app = typer.Typer(
    help="Noise-cancelling (differential) attention for PyTorch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure ratios against peers.", no_args_is_help=True)
app.add_typer(bench, name="bench")
console = Console()


@bench.command("attention")
def bench_attention(
    dtype: Annotated[list[str], typer.Option(help="fp32, bf16 or fp16; repeat for several")] = [
        "fp32",
        "bf16",
    ],
    length: Annotated[list[int], typer.Option(help="keys; repeat for several")] = [
        512,
        2048,
        4096,
        8192,
    ],
    threads: Annotated[
        Optional[list[int]], typer.Option(help="threads; default 1 and all cores")
    ] = None,
    queries: Annotated[
        Optional[int], typer.Option(help="query rows, 1 for decoding; default: as many as keys")
    ] = None,
    backward: Annotated[bool, typer.Option(help="measure forward + backward, too")] = True,
    causal: Annotated[bool, typer.Option(help="causal attention")] = True,
    heads: Annotated[int, typer.Option(help="heads of standard attention, even")] = 16,
    width: Annotated[int, typer.Option(help="width of a head")] = 64,
    batch: Annotated[int, typer.Option(help="sequences in a batch")] = 1,
    rounds: Annotated[int, typer.Option(help="rounds that count")] = 7,
    json_file: Annotated[
        Optional[Path], typer.Option("--json", help="write everything measured here")
    ] = None,
    plot: Annotated[
        Optional[Path], typer.Option(help="draw ratios against the length (PNG, SVG, PDF)")
    ] = None,
) -> None:
    """Differential attention beside standard attention of equal parameters."""
    from rich.progress import Progress

    from antiphase.benchmarks import attention, report
    from antiphase.ops.fused_cpu.cpu import guard_bf16

    for name in dtype:
        if name not in attention.DTYPES:
            _fail(f"--dtype: got {name!r}, allowed are {', '.join(attention.DTYPES)}")
    threads = threads or sorted({1, os.cpu_count() or 1})
    counts = {"length": min(length), "rounds": rounds, "width": width, "batch": batch}
    for option, value in {**counts, "threads": min(threads)}.items():
        if value < 1:
            _fail(f"--{option}: got {value}, expected at least 1")
    if queries is not None and not 1 <= queries <= min(length):
        _fail(f"--queries: got {queries}, expected 1 to the length ({min(length)})")
    if heads < 2 or heads % 2:
        _fail(f"--heads: got {heads}, expected an even number (differential forms have half)")
    guard_bf16()
    settings = [
        attention.Setting(d, n, t, queries, heads, width, batch, causal)
        for d in dtype
        for t in threads
        for n in length
    ]
    about = attention.machine()
    report.print_machine(console, about)
    cells = []
    with Progress(console=console, transient=True) as progress:
        steps = len(settings) * (rounds + 1) * (1 + backward)
        task = progress.add_task("measuring", total=steps)
        for setting in settings:
            progress.update(
                task, description=f"{setting.dtype}, T = {setting.length}, {setting.threads} thr."
            )
            cell = attention.measure_cell(
                setting, backward=backward, rounds=rounds, tick=lambda: progress.advance(task)
            )
            cells.append(cell)
            report.print_cell(console, cell)
            if json_file is not None:  # after each cell: nothing is lost when it stops
                json_file.parent.mkdir(parents=True, exist_ok=True)
                json_file.write_text(json.dumps(attention.as_json(cells, about), indent=1))
    if plot is not None:
        report.plot(cells, plot)
    for path in filter(None, (json_file, plot)):
        console.print(f"wrote {path}")


@bench.command("model")
def bench_model(
    size: Annotated[str, typer.Option(help="a preset: nano, micro, mini, ...")] = "mini",
    race: Annotated[
        list[str], typer.Option(help="training, forward or decoding; repeat for several")
    ] = ["training", "forward", "decoding"],
    length: Annotated[int, typer.Option(help="tokens of a text, and of the context")] = 2048,
    new_tokens: Annotated[int, typer.Option(help="tokens to decode after it")] = 256,
    threads: Annotated[int, typer.Option(help="threads")] = 1,
    dtype: Annotated[str, typer.Option(help="fp32 or bf16")] = "fp32",
    kv_heads: Annotated[
        Optional[int], typer.Option(help="key/value heads of the baseline; default: its heads")
    ] = None,
    rounds: Annotated[int, typer.Option(help="rounds that count")] = 7,
    json_file: Annotated[
        Optional[Path], typer.Option("--json", help="write everything measured here")
    ] = None,
) -> None:
    """Whole models: a training step, a forward pass, decoding; ratios to `standard`."""
    from antiphase.benchmarks import attention, model, report
    from antiphase.ops.fused_cpu.cpu import guard_bf16

    if dtype not in model.DTYPES:
        _fail(f"--dtype: got {dtype!r}, allowed are {', '.join(model.DTYPES)}")
    for name in race:
        if name not in model.RACES:
            _fail(f"--race: got {name!r}, allowed are {', '.join(model.RACES)}")
    for option, value in {
        "length": length,
        "new-tokens": new_tokens,
        "threads": threads,
        "rounds": rounds,
    }.items():
        if value < 1:
            _fail(f"--{option}: got {value}, expected at least 1")
    guard_bf16()
    setting = model.Setting(size, length, new_tokens, threads, dtype, kv_heads)
    about = attention.machine()
    report.print_machine(console, about)
    console.print(f"{size}, {dtype}, {threads} thread(s), median of {rounds} interleaved rounds")
    with console.status("measuring") as status:
        done: list[str] = []

        def tick(title: str) -> None:
            done.append(title)
            status.update(f"{title}: round {done.count(title)} of {rounds + 1}")

        races: list[model.Race] = []
        for result in model.run(setting, race, rounds, tick):
            races.append(result)
            report.print_race(console, result)
            if json_file is not None:  # after each race: nothing is lost when it stops
                json_file.parent.mkdir(parents=True, exist_ok=True)
                json_file.write_text(json.dumps(model.as_json(setting, races, about), indent=1))
    if json_file is not None:
        console.print(f"wrote {json_file}")


@bench.command("training")
def bench_training(
    recipe: Annotated[str, typer.Argument(help="a built-in recipe or a YAML file")] = "needle-nano",
    steps: Annotated[int, typer.Option(help="steps that are timed")] = 40,
    setting: Annotated[
        Optional[list[str]], typer.Option("--set", help="any field of the recipe, NAME=VALUE")
    ] = None,
) -> None:
    """What a run costs beside a bare loop over the same batches, step by step in turns."""
    from antiphase.benchmarks import attention, report
    from antiphase.benchmarks import training as race
    from antiphase.ops.fused_cpu.cpu import guard_bf16
    from antiphase.training.recipe import apply_settings, load_recipe

    if steps < 1:
        _fail(f"--steps: got {steps}, expected at least 1")
    guard_bf16()
    chosen = apply_settings(load_recipe(recipe), setting or [])
    report.print_machine(console, attention.machine())
    with console.status("measuring") as status:
        done: list[None] = []

        def tick() -> None:
            done.append(None)
            status.update(f"step {len(done)} of {steps}")

        cost = race.run(chosen, steps, tick)
    console.print(
        f"{recipe}: {chosen.size}, {chosen.attention}, {chosen.task}, {chosen.batch_size} texts a "
        f"step, median of {steps} steps that took turns (quartiles)"
    )
    for name, rate in cost.tokens_per_second.items():
        console.print(f"{name}: {rate:,.0f} tokens/s")
    for name, r in {"wall": cost.wall, "CPU": cost.cpu}.items():
        console.print(f"run / bare loop, {name}: {r.median:.3f} ({r.low:.3f}-{r.high:.3f})")
    console.print(f"making the batches / bare loop, CPU: {cost.batches.median:.5f}")


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
    from antiphase import show as tables

    if dtype not in tables.DTYPES:
        _fail(f"--dtype: got {dtype!r}, allowed are {', '.join(tables.DTYPES)}")
    if context < 1:
        _fail(f"--context: got {context}, expected at least 1")
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
        _fail(f"--max-new-tokens: got {max_new_tokens}, expected at least 1")
    if temperature < 0 or not 0 < top_p <= 1:
        _fail(f"--temperature {temperature}, --top-p {top_p}: expected at least 0, and 0 to 1")
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
    from antiphase.tasks.show import coloured, legend
    from antiphase.training.recipe import parse_setting

    options = dict(parse_setting(text) for text in setting or [])
    for word in {"split", "size", "seed"} & set(options):
        _fail(
            f"--set {word}: is no option of the task; there is --{word}"
            if word != "size"
            else "--set size: is no option of the task; --show says how many"
        )
    if show < 1:
        _fail(f"--show: got {show}, expected at least 1")
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
        Optional[Path], typer.Option(help="folder of the run; default runs/RECIPE-ATTENTION-SEED")
    ] = None,
    resume: Annotated[
        Optional[Path], typer.Option(help="go on with this run from its last whole checkpoint")
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
    """Train a model from a recipe, or go on with a run."""
    from antiphase import training
    from antiphase.training.recipe import apply_settings
    from antiphase.training.stopping import StoppedError
    from antiphase.training.trouble import TroubleError

    if listing:
        console.print("\n".join(training.built_in()))
        return
    try:
        given = {"task": task, "attention": attention, "size": size, "steps": steps, "seed": seed}
        given = {k: v for k, v in given.items() if v is not None}
        if resume is not None:
            if recipe or out or given or setting or force:
                _fail("--resume goes on with a run as it began; it takes no other option")
            folder = training.resume(resume)
        else:
            if recipe is None and task is None:
                _fail("give a recipe (see --list), or --task, or --resume RUN")
            chosen = training.load_recipe(recipe) if recipe else training.Recipe()
            chosen = chosen.changed(**given)
            chosen = apply_settings(chosen, setting or [])
            name = (
                f"{Path(recipe).stem if recipe else chosen.task}-{chosen.attention}-{chosen.seed}"
            )
            folder = training.train(chosen, out or Path("runs") / name, force=force)
    except TroubleError as trouble:
        _fail(str(trouble))
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

    from antiphase.training.card import draw_curves
    from antiphase.training.compare import compare as groups_of
    from antiphase.training.compare import ended_runs

    if plot is not None and plot.suffix not in (".png", ".svg", ".pdf"):
        _fail(f"--plot: got {plot}, expected a name that ends in .png, .svg or .pdf")
    ended, others = ended_runs(runs)
    for folder, why in others.items():
        typer.echo(f"antiphase: {folder}: {why}; left out", err=True)
    if not ended:
        _fail("there is no ended run among these folders")
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
            _fail("--plot: needs matplotlib; pip install 'antiphase[plots]'")
        console.print(f"wrote {plot}")


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
    from antiphase.doctor import findings

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
        _fail(f"the kernels could not be built: {reason}")
    speeds = ", ".join(f"{name} {rate:.0f} GFLOP/s" for name, rate in rates.items())
    console.print(f"{path}: {speeds}", highlight=False, soft_wrap=True)


def _fail(message: str) -> NoReturn:
    typer.echo(f"antiphase: {message}", err=True)
    raise typer.Exit(2)


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
