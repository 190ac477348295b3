"""`antiphase bench`: ratios to standard attention, to peers and to a bare loop."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from antiphase.cli.options import (
    PICTURES,
    AsJson,
    Quiet,
    require_at_least,
    require_one_of,
    require_output_file,
    require_packages,
    set_option,
)
from antiphase.cli.output import Output

if TYPE_CHECKING:
    from antiphase.benchmarks.attention import AttentionSetting

ROWS = ("standard", "padded", "packed", "window", "v2", "heads", "overhead", "long")

bench = typer.Typer(help="Measure speed as ratios to baselines.", no_args_is_help=True)

OutFile = Annotated[
    Optional[Path], typer.Option("--out", help="also write all measurements to this JSON file")
]
Rounds = Annotated[int, typer.Option(help="number of measured rounds")]


@bench.command("attention")
def bench_attention(
    dtype: Annotated[list[str], typer.Option(help="fp32, bf16 or fp16; repeat for several")] = [
        "fp32",
        "bf16",
    ],
    length: Annotated[list[int], typer.Option(help="number of keys; repeat for several")] = [
        512,
        2048,
        4096,
        8192,
    ],
    threads: Annotated[
        Optional[list[int]], typer.Option(help="number of threads; default: 1, and all cores")
    ] = None,
    queries: Annotated[
        Optional[int],
        typer.Option(help="number of queries, 1 for decoding; default: as many as keys"),
    ] = None,
    backward: Annotated[bool, typer.Option(help="also measure forward + backward")] = True,
    causal: Annotated[bool, typer.Option(help="causal attention")] = True,
    heads: Annotated[int, typer.Option(help="number of heads of standard attention, even")] = 16,
    width: Annotated[int, typer.Option(help="width per head")] = 64,
    batch: Annotated[int, typer.Option(help="batch size")] = 1,
    rows: Annotated[
        str, typer.Option(help=f"what to measure, separated by commas: {', '.join(ROWS)}, or all")
    ] = ",".join(ROWS[:-1]),
    device: Annotated[
        str, typer.Option(help="cpu, or cuda (also for ROCm) to measure the Triton kernels")
    ] = "cpu",
    rounds: Rounds = 7,
    out: OutFile = None,
    plot: Annotated[
        Optional[Path], typer.Option(help="plot ratios over the length (PNG, SVG, PDF)")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare differential attention to standard attention of equal parameters, and more.

    Rows: `standard` is that comparison. `padded`, `packed`, `window`, `v2`, `heads` (odd numbers)
    and `overhead` (one query, 64 keys) compare calls of real batches with what they should cost.
    `long` is the first comparison with 32k and 64k keys, 2 heads and 3 rounds. On a GPU, outputs
    and gradients are checked before anything is timed.
    """
    chosen = list(ROWS) if rows == "all" else [name.strip() for name in rows.split(",")]
    for name in chosen:
        require_one_of(ROWS, rows=name)
    for name in dtype:
        require_one_of(("fp32", "bf16", "fp16"), dtype=name)
    require_one_of(("cpu", "cuda"), device=device)
    threads = threads or sorted({1, os.cpu_count() or 1} if device == "cpu" else {1})
    require_at_least(
        1, length=min(length), rounds=rounds, width=width, batch=batch, threads=min(threads)
    )
    if queries is not None and not 1 <= queries <= min(length):
        raise ValueError(f"--queries: got {queries}, expected 1 to the length ({min(length)})")
    if heads < 2 or heads % 2:
        raise ValueError(
            f"--heads: got {heads}, expected an even number (differential forms have half)"
        )
    require_output_file("--out", out, (".json",))
    require_output_file("--plot", plot, PICTURES)
    if plot is not None:
        require_packages("--plot", "plots", "matplotlib")
        if not {"standard", "long"} & set(chosen):
            raise ValueError(f"--plot: draws the rows standard and long, but --rows is {rows}")
    from rich.progress import Progress

    from antiphase.benchmarks import attention, attention_cases, report

    if device != "cpu":
        _check_gpu(device, dtype)
    output, about = _begin(quiet, as_json, device)
    output.note(f"{', '.join(chosen)}; median of {rounds} interleaved rounds, wall and CPU time")
    settings = [
        attention.AttentionSetting(d, n, t, queries, heads, width, batch, causal, device)
        for d in dtype
        for t in threads
        for n in length
    ]
    cells: list[attention.Cell] = []
    cases: list[attention_cases.Case] = []
    steps = _attention_steps(settings, chosen)
    with Progress(console=output.progress, transient=True) as progress:
        total = sum(_rounds(kind, rounds, backward) for kind, _ in steps)
        bar = progress.add_task("measuring", total=total)
        for kind, setting in steps:
            title = f"{kind}, {setting.dtype}, T = {setting.length}, {setting.threads} thr."
            progress.update(bar, description=title)
            run: dict[str, Any] = {"backward": backward, "tick": lambda: progress.advance(bar)}
            if kind in attention_cases.KINDS:
                found = attention_cases.measure_cases(setting, kind, rounds=rounds, **run)
                cases += found
                output.table(report.case_table(found))
            else:
                if kind == "long":
                    run["only"] = attention.LONG_NAMES
                n = min(rounds, attention.LONG_ROUNDS) if kind == "long" else rounds
                cells.append(attention.measure_cell(setting, rounds=n, **run))
                output.table(report.cell_table(cells[-1]))
            _save(out, attention.as_json(cells, cases, about))
    if plot is not None:
        report.plot(cells, plot)
    for path in filter(None, (out, plot)):
        output.wrote(path)
    output.json(attention.as_json(cells, cases, about))


def _attention_steps(
    settings: "list[AttentionSetting]", rows: list[str]
) -> "list[tuple[str, AttentionSetting]]":
    """Return what to measure in which setting; some rows do not depend on the length."""
    from antiphase.benchmarks.attention import long_settings

    steps = []
    of_any_length = list({(s.dtype, s.threads): s for s in settings}.values())
    for kind in rows:
        if kind == "long":
            steps += [(kind, long) for s in of_any_length for long in long_settings(s)]
        elif kind == "overhead":
            steps += [(kind, s) for s in of_any_length if s.threads == 1]
        else:
            steps += [(kind, s) for s in settings]
    return steps


def _rounds(kind: str, rounds: int, backward: bool) -> int:
    """Return how often the progress bar advances while one step is measured."""
    from antiphase.benchmarks import attention, attention_cases

    if kind in attention_cases.KINDS:
        n = attention_cases.contests(kind) * len(attention_cases.passes(kind, backward))
        return n * (rounds + 1)
    return (1 + backward) * (1 + (min(rounds, attention.LONG_ROUNDS) if kind == "long" else rounds))


@bench.command("model")
def bench_model(
    size: Annotated[str, typer.Option(help="preset: nano, micro, mini, ...")] = "mini",
    workload: Annotated[
        list[str], typer.Option(help="training, forward, decoding or compiled; repeat for several")
    ] = ["training", "forward", "decoding"],
    length: Annotated[int, typer.Option(help="sequence length of training and forward")] = 2048,
    context: Annotated[
        list[int], typer.Option(help="number of tokens before those decoded; repeat for several")
    ] = [1024, 2048],
    new_tokens: Annotated[int, typer.Option(help="number of tokens to decode after them")] = 256,
    threads: Annotated[int, typer.Option(help="number of threads")] = 1,
    dtype: Annotated[str, typer.Option(help="fp32 or bf16")] = "fp32",
    kv_heads: Annotated[
        Optional[int],
        typer.Option(help="number of key/value heads of the baseline; default: all its heads"),
    ] = None,
    rounds: Rounds = 7,
    out: OutFile = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare models: a training step, a forward pass and decoding, relative to `standard`.

    The workload `compiled` compares decoding with compiled decoding (static cache); compiling takes
    a minute or more for each model.
    """
    require_one_of(("fp32", "bf16"), dtype=dtype)
    for name in workload:
        require_one_of(("training", "forward", "decoding", "compiled"), workload=name)
    require_at_least(1, length=length, context=min(context), new_tokens=new_tokens)
    require_at_least(1, threads=threads, rounds=rounds, kv_heads=kv_heads)
    require_output_file("--out", out, (".json",))
    from antiphase.benchmarks import model, report
    from antiphase.models import PRESETS

    require_one_of(PRESETS, size=size)
    output, about = _begin(quiet, as_json)
    setting = model.ModelSetting(size, length, tuple(context), new_tokens, threads, dtype, kv_heads)
    output.note(
        f"{size}, {dtype}, {threads} thread(s): {', '.join(workload)}; median of {rounds} "
        "interleaved rounds, wall and CPU time"
    )
    comparisons: list[model.Comparison] = []
    with output.progress.status("measuring") as status:
        done: list[str] = []

        def tick(title: str) -> None:
            done.append(title)
            status.update(f"{title}: round {done.count(title)} of {rounds + 1}")

        for result in model.run(setting, workload, rounds, tick):
            comparisons.append(result)
            output.table(report.comparison_table(result))
            _save(out, model.as_json(setting, comparisons, about))
    if out is not None:
        output.wrote(out)
    output.json(model.as_json(setting, comparisons, about))


@bench.command("training")
def bench_training(
    recipe: Annotated[str, typer.Argument(help="a built-in recipe or a YAML file")] = "needle-nano",
    steps: Annotated[int, typer.Option(help="number of measured steps")] = 40,
    setting: Annotated[Optional[list[str]], set_option("any field of the recipe")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare a run to a bare loop over the same batches, in alternating steps."""
    require_at_least(1, steps=steps)
    from antiphase.training.recipe import apply_settings, load_recipe

    chosen = apply_settings(load_recipe(recipe), setting or [])
    from antiphase.benchmarks import report, training

    output, about = _begin(quiet, as_json)
    with output.progress.status("measuring") as status:
        done: list[None] = []

        def tick() -> None:
            done.append(None)
            status.update(f"step {len(done)} of {steps}")

        cost = training.run(chosen, steps, tick)
    output.note(
        f"{recipe}: {chosen.size}, {chosen.attention}, {chosen.task}, batch size "
        f"{chosen.batch_size}, median of {steps} alternating steps"
    )
    output.table(report.training_table(cost))
    output.json({"machine": about, "recipe": chosen.as_dict(), "costs": cost})


@bench.command("adapter")
def bench_adapter(
    length: Annotated[int, typer.Option(help="number of tokens in the context")] = 256,
    new_tokens: Annotated[int, typer.Option(help="number of tokens to decode after it")] = 32,
    threads: Annotated[int, typer.Option(help="number of threads")] = 1,
    dtype: Annotated[str, typer.Option(help="fp32 or bf16")] = "fp32",
    rounds: Rounds = 9,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure what DEX costs in decoding, as an adapter and folded, relative to the base model."""
    require_one_of(("fp32", "bf16"), dtype=dtype)
    require_at_least(1, length=length, new_tokens=new_tokens, threads=threads, rounds=rounds)
    import torch

    from antiphase.benchmarks import adapter, model, report

    output, about = _begin(quiet, as_json)
    torch.set_num_threads(threads)
    output.note(
        f"the shape of SmolLM2-135M, {dtype}, {threads} thread(s): {new_tokens} tokens after "
        f"{length}, median of {rounds} interleaved rounds"
    )
    with output.progress.status("measuring"):
        costs = adapter.compare(length, new_tokens, model.DTYPES[dtype], rounds)
    output.table(report.adapter_table(costs, new_tokens))
    output.json({"machine": about, "costs": costs})


@bench.command("interface")
def bench_interface(
    batch: Annotated[int, typer.Option(help="number of sequences")] = 1,
    length: Annotated[int, typer.Option(help="tokens of each")] = 1024,
    threads: Annotated[int, typer.Option(help="number of threads")] = 1,
    dtype: Annotated[str, typer.Option(help="fp32, or bf16 (autocast)")] = "bf16",
    rounds: Rounds = 5,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare a Hugging Face Llama on PyTorch's attention and on ours."""
    require_one_of(("fp32", "bf16"), dtype=dtype)
    require_at_least(1, batch=batch, length=length, threads=threads, rounds=rounds)
    import torch

    from antiphase.benchmarks import interface, report

    output, about = _begin(quiet, as_json)
    torch.set_num_threads(threads)
    output.note(
        f"the shape of SmolLM2-135M, {dtype}, {threads} thread(s): {batch} x {length} tokens, "
        f"median of {rounds} interleaved rounds"
    )
    with output.progress.status("measuring"):
        costs = interface.compare(batch, length, dtype == "bf16", rounds)
    output.table(report.interface_table(costs))
    output.json({"machine": about, "costs": costs})


@bench.command("gpu-roofline")
def bench_gpu_roofline(
    heads: Annotated[int, typer.Option(help="number of differential heads")] = 12,
    width: Annotated[int, typer.Option(help="width of Q and K per head; V has twice that")] = 128,
    length: Annotated[int, typer.Option(help="number of keys")] = 4096,
    as_json: AsJson = False,
) -> None:
    """Predict the cost on GPUs from counts and published peaks. Nothing is measured.

    Cells are times relative to standard attention of equal parameters: if products, memory and
    exponentials overlap completely / if they run one after the other (what takes longest).
    """
    require_at_least(1, heads=heads, width=width, length=length)
    from antiphase.benchmarks import roofline

    output = Output(as_json=as_json)
    rows = roofline.table(roofline.Shape(heads, width, length))
    columns = ["workload", "form", *(gpu.name for gpu in roofline.GPUS)]
    output.note(
        f"predicted, not measured: bf16, {heads} heads with two maps of width {width}, "
        f"T = {length}, causal"
    )
    output.rows(columns, rows)
    output.json([dict(zip(columns, row, strict=True)) for row in rows])


@bench.command("gpu-static")
def bench_gpu_static(
    architecture: Annotated[
        Optional[list[str]],
        typer.Option(help="sm_80, sm_90, sm_100 or gfx942; repeat for several; default: all"),
    ] = None,
    processes: Annotated[int, typer.Option(help="number of compilers at once")] = 2,
    out: Annotated[
        Optional[Path], typer.Option("--out", help="also write the table (Markdown or JSON)")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compile the Triton kernels for GPUs, without one: registers, spills, shared memory.

    Takes tens of minutes the first time; results are kept until the kernels change. Fails if a
    variant spills registers or does its products without tensor cores.
    """
    require_at_least(1, processes=processes)
    require_packages("bench gpu-static", "gpu", "triton")
    require_output_file("--out", out, (".md", ".json"))
    from rich.progress import Progress

    from antiphase.benchmarks import gpu_static

    for name in architecture or ():
        require_one_of(gpu_static.ARCHITECTURES, architecture=name)
    output = Output(quiet=quiet, as_json=as_json)
    chosen = list(gpu_static.variants(architecture or gpu_static.ARCHITECTURES))
    with Progress(console=output.progress, transient=True) as progress:
        bar = progress.add_task("compiling", total=len(chosen))
        found = gpu_static.compile_all(chosen, processes, lambda: progress.advance(bar))
    page = gpu_static.as_markdown(found)
    output.note(page)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page if out.suffix == ".md" else json.dumps(gpu_static.as_json(found)))
        output.wrote(out)
    output.json(gpu_static.as_json(found))
    faults = sum(bool(c.faults) for c in found)
    if faults:
        raise ValueError(f"{faults} of {len(found)} variants have faults; see the table's end")


def _check_gpu(device: str, dtypes: list[str]) -> None:
    """Raise unless there is a GPU on which the Triton kernels give what `sdpa` gives."""
    import torch

    from antiphase.benchmarks.attention import DTYPES

    require_packages("--device cuda", "gpu", "triton")
    if not torch.cuda.is_available():
        raise ValueError("--device: got cuda, but PyTorch finds no GPU here")
    from antiphase.ops.triton.self_check import check

    for name in dtypes:
        reason = check(torch.device(device), DTYPES[name])
        if reason is not None:
            raise ValueError(f"the Triton kernels are wrong on this GPU in {name}: {reason}")


def _begin(quiet: bool, as_json: bool, device: str = "cpu") -> tuple[Output, dict[str, Any]]:
    """Return where to print, and the machine, which is printed first."""
    from antiphase.benchmarks.attention import machine
    from antiphase.benchmarks.report import machine_lines
    from antiphase.cpu import guard_bf16

    guard_bf16()
    output, about = Output(quiet=quiet, as_json=as_json), machine(device)
    for line in machine_lines(about):
        output.note(line)
    return output, about


def _save(out: Path | None, content: dict[str, Any]) -> None:
    """Write what was measured so far: nothing is lost if the benchmark is stopped."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(content, indent=1))
