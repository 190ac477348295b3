"""`antiphase bench ...`: ratios against peers."""

import json
import os
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console

from antiphase.cli.errors import fail

bench = typer.Typer(help="Measure ratios against peers.", no_args_is_help=True)
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
    from antiphase.cpu import guard_bf16

    for name in dtype:
        if name not in attention.DTYPES:
            fail(f"--dtype: got {name!r}, allowed are {', '.join(attention.DTYPES)}")
    threads = threads or sorted({1, os.cpu_count() or 1})
    counts = {"length": min(length), "rounds": rounds, "width": width, "batch": batch}
    for option, value in {**counts, "threads": min(threads)}.items():
        if value < 1:
            fail(f"--{option}: got {value}, expected at least 1")
    if queries is not None and not 1 <= queries <= min(length):
        fail(f"--queries: got {queries}, expected 1 to the length ({min(length)})")
    if heads < 2 or heads % 2:
        fail(f"--heads: got {heads}, expected an even number (differential forms have half)")
    guard_bf16()
    settings = [
        attention.AttentionSetting(d, n, t, queries, heads, width, batch, causal)
        for d in dtype
        for t in threads
        for n in length
    ]
    about = attention.machine()
    console.print("\n".join(report.machine_lines(about)), markup=False)
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
            console.print(report.cell_table(cell))
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
    from antiphase.cpu import guard_bf16

    if dtype not in model.DTYPES:
        fail(f"--dtype: got {dtype!r}, allowed are {', '.join(model.DTYPES)}")
    for name in race:
        if name not in model.WORKLOADS:
            fail(f"--race: got {name!r}, allowed are {', '.join(model.WORKLOADS)}")
    for option, value in {
        "length": length,
        "new-tokens": new_tokens,
        "threads": threads,
        "rounds": rounds,
    }.items():
        if value < 1:
            fail(f"--{option}: got {value}, expected at least 1")
    guard_bf16()
    setting = model.ModelSetting(size, length, new_tokens, threads, dtype, kv_heads)
    about = attention.machine()
    console.print("\n".join(report.machine_lines(about)), markup=False)
    console.print(f"{size}, {dtype}, {threads} thread(s), median of {rounds} interleaved rounds")
    with console.status("measuring") as status:
        done: list[str] = []

        def tick(title: str) -> None:
            done.append(title)
            status.update(f"{title}: round {done.count(title)} of {rounds + 1}")

        races: list[model.Comparison] = []
        for result in model.run(setting, race, rounds, tick):
            races.append(result)
            console.print(report.comparison_table(result))
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
    from antiphase.cpu import guard_bf16
    from antiphase.training.recipe import apply_settings, load_recipe

    if steps < 1:
        fail(f"--steps: got {steps}, expected at least 1")
    guard_bf16()
    chosen = apply_settings(load_recipe(recipe), setting or [])
    console.print("\n".join(report.machine_lines(attention.machine())), markup=False)
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
    console.print(report.training_table(cost))


@bench.command("adapter")
def bench_adapter(
    length: Annotated[int, typer.Option(help="tokens of the context")] = 256,
    new_tokens: Annotated[int, typer.Option(help="tokens to decode after it")] = 32,
    threads: Annotated[int, typer.Option(help="threads")] = 1,
    dtype: Annotated[str, typer.Option(help="fp32 or bf16")] = "fp32",
    rounds: Annotated[int, typer.Option(help="rounds that count")] = 9,
) -> None:
    """What DEX costs in decoding, with the adapter and folded; ratios to the base model."""
    import torch

    from antiphase.benchmarks import adapter, attention, model, report
    from antiphase.cpu import guard_bf16

    if dtype not in model.DTYPES:
        fail(f"--dtype: got {dtype!r}, allowed are {', '.join(model.DTYPES)}")
    for option, value in {"length": length, "new-tokens": new_tokens, "rounds": rounds}.items():
        if value < 1:
            fail(f"--{option}: got {value}, expected at least 1")
    guard_bf16()
    torch.set_num_threads(threads)
    console.print("\n".join(report.machine_lines(attention.machine())), markup=False)
    console.print(
        f"the shape of SmolLM2-135M, {dtype}, {threads} thread(s): {new_tokens} tokens after "
        f"{length}, median of {rounds} interleaved rounds (quartiles)"
    )
    with console.status("measuring"):
        costs = adapter.compare(length, new_tokens, model.DTYPES[dtype], rounds)
    console.print(report.adapter_table(costs, new_tokens))
