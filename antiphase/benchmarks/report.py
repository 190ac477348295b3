"""Present a benchmark: tables for the terminal, a plot of ratios against the length.

Tables fit 80 columns. Where they leave out quartiles, the JSON has them.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from antiphase.benchmarks.attention import FUSED, FUSED_GPU, STANDARD, STANDARD_FP32, Cell
from antiphase.benchmarks.attention_cases import OVERHEAD, Case
from antiphase.benchmarks.model import BASELINE, Comparison
from antiphase.benchmarks.timing import Ratio

if TYPE_CHECKING:
    from antiphase.benchmarks.adapter import AdapterCost
    from antiphase.benchmarks.interface import InterfaceCost
    from antiphase.benchmarks.training import TrainingCost


def machine_lines(about: dict[str, Any]) -> list[str]:
    """Describe the machine that the figures are measured on, in lines of text."""
    rates = ", ".join(
        f"{name} {rate:.0f}" if isinstance(rate, float) else str(rate)
        for name, rate in about["micro_kernels_gflops"].items()
    )
    gpu = [about["gpu"]] if "gpu" in about else []
    lines = [
        *gpu,
        f"{about['cpu']}, {about['capability']}, torch {about['torch']}",
        f"micro-kernels, GFLOP/s of a tile on one thread: {rates}",
    ]
    if about["onednn_cap"]:
        lines.append(f"oneDNN is capped at {about['onednn_cap']}: its AMX code crashes here")
    return lines


def cell_table(cell: Cell) -> Table:
    """Return one cell as a table: ratios to standard attention, lower is better."""
    setting = cell.setting
    queries = "" if setting.queries is None else f", {setting.queries} query rows"
    table = _table(
        f"{setting.dtype}, T = {setting.length}{queries}, {setting.threads} thread(s), "
        f"{setting.batch}x{setting.heads}x{setting.width}, "
        f"{'causal' if setting.masked else 'full'}; GEMM {cell.gemm_gflops:.0f} GFLOP/s",
        *("alternative", "wall ratio\n(quartiles)", "CPU\nratio", "to one\nmap", "ms"),
        *("GFLOP\n/s", "of\nGEMM", "peak\nMB"),
    )
    for title, backward in (("forward", False), ("forward + backward", True)):
        rows = [row for row in cell.rows if row.backward == backward]
        if not rows:
            continue
        table.add_section()
        table.add_row(Text(title, style="bold"))
        for row in rows:
            baseline = row.name in (STANDARD, STANDARD_FP32)
            style = "green" if row.name in (FUSED, FUSED_GPU) else "dim" if baseline else None
            table.add_row(
                row.name,
                _quartiles(row.wall),
                f"{row.cpu.median:.2f}",
                "-" if row.one_map is None else f"{row.one_map.median:.2f}",
                f"{row.milliseconds:.1f}",
                f"{row.gflops:.0f}",
                f"{row.gflops / cell.gemm_gflops:.0%}",
                _megabytes(row.peak_bytes),
                style=style,
            )
    if cell.flags:
        table.caption = "Pathological baseline. " + ". ".join(cell.flags)
    return table


def case_table(cases: list[Case]) -> Table:
    """Return the cases of one kind in one setting as a table: ratios to the time they should take.

    Args:
        cases: Of one setting and one kind, at least one.
    """
    setting, rows = cases[0].setting, cases[0].rows
    short = rows == OVERHEAD
    length = "" if short else f"T = {setting.length}, "
    table = _table(
        f"{rows}: {setting.dtype}, {length}{setting.threads} thread(s), width {setting.width}\n"
        f"ratios to {cases[0].baseline}",
        *("call", "wall ratio\n(quartiles)", "CPU\nratio"),
        *(("us", "baseline\nus") if short else ("ms", "baseline\nms")),
        *("peak\nMB", "baseline\nMB"),
    )
    unit = 1e3 if short else 1.0
    for title, backward in (("forward", False), ("forward + backward", True)):
        part = [case for case in cases if case.backward == backward]
        if not part:
            continue
        table.add_section()
        table.add_row(Text(title, style="bold"))
        for case in part:
            table.add_row(
                case.name,
                _quartiles(case.wall),
                f"{case.cpu.median:.2f}",
                f"{unit * case.milliseconds:.1f}",
                f"{unit * case.baseline_milliseconds:.1f}",
                *(_megabytes(n) for n in (case.peak_bytes, case.baseline_peak_bytes)),
            )
    return table


def comparison_table(comparison: Comparison) -> Table:
    """Return one workload as a table: ratios to `standard`, lower is better, and to DiffLlama."""
    table = _table(
        f"{comparison.title}: ratios to the time of {BASELINE}",
        *("model", "parameters", "wall\nratio", "CPU ratio\n(quartiles)"),
        *("DiffLlama /\nthis model", "s"),
    )
    for entry in comparison.entries:
        speedup = "-" if entry.to_diffllama is None else f"{1 / entry.to_diffllama.median:.2f}"
        table.add_row(
            entry.name,
            f"{entry.parameters / 1e6:.3g}M",
            f"{entry.wall.median:.2f}",
            _quartiles(entry.cpu),
            speedup,
            f"{entry.seconds:.2f}",
            style="dim" if entry.name == BASELINE else None,
        )
    if comparison.compile_seconds:
        times = (f"{name} {seconds:.0f} s" for name, seconds in comparison.compile_seconds.items())
        table.caption = f"time to compile: {'; '.join(times)}"
    return table


def training_table(cost: "TrainingCost") -> Table:
    """Return the cost of a run as a table: ratios to a bare loop, lower is better."""
    table = _table(None, "measure", "value (quartiles)")
    for name, rate in cost.tokens_per_second.items():
        table.add_row(f"{name}, tokens/s", f"{rate:,.0f}")
    table.add_row("run / bare loop, wall", _quartiles(cost.wall, 3))
    table.add_row("run / bare loop, CPU", _quartiles(cost.cpu, 3))
    table.add_row("building the batches / bare loop, CPU", f"{cost.batches.median:.5f}")
    return table


def adapter_table(costs: "list[AdapterCost]", new_tokens: int) -> Table:
    """Return the cost of DEX in decoding as a table: ratios to the base model, lower is better."""
    names = ("model", "tokens/s", "wall ratio (quartiles)", "CPU ratio (quartiles)")
    table = _table(None, *names)
    for cost in costs:
        rate = f"{new_tokens / cost.seconds:.1f}"
        table.add_row(cost.name, rate, _quartiles(cost.wall, 3), _quartiles(cost.cpu, 3))
    return table


def interface_table(costs: "list[InterfaceCost]") -> Table:
    """Return the time of attention implementations: ratios to PyTorch's, lower is better."""
    names = ("attention", "s", "wall ratio (quartiles)", "CPU ratio (quartiles)")
    table = _table(None, "workload", *names)
    for cost in costs:
        ratios = _quartiles(cost.wall), _quartiles(cost.cpu)
        table.add_row(cost.workload, cost.implementation, f"{cost.seconds:.3f}", *ratios)
    return table


def _table(title: str | None, first: str, *numeric: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.add_column(first)  # wraps before any digit is cut
    for name in numeric:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _megabytes(n: int | None) -> str:
    return "-" if n is None else f"{n / 1e6:.0f}"


def _quartiles(ratio: Ratio, digits: int = 2) -> str:
    return f"{ratio.median:.{digits}f} ({ratio.low:.{digits}f}-{ratio.high:.{digits}f})"


def plot(cells: list[Cell], path: Path) -> None:
    """Plot the wall-time ratio to standard attention against the length.

    Args:
        cells: Measurements; one panel per dtype, number of threads and pass.
        path: File to write (PNG, SVG or PDF).
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = sorted(
        {(c.setting.dtype, c.setting.threads, r.backward) for c in cells for r in c.rows},
        key=lambda kind: (kind[0] != "fp32", kind[1], kind[2]),
    )
    columns = min(len(kinds), 4)
    lines = -(-len(kinds) // columns)
    figure, axes = plt.subplots(
        lines,
        columns,
        figsize=(4.2 * columns, 3.6 * lines + 0.6),
        squeeze=False,
        sharey=True,
        layout="constrained",
    )
    names = list(dict.fromkeys(r.name for c in cells for r in c.rows))
    markers = dict(zip(names, "osD^vP*X", strict=False))
    for axis, (dtype, threads, backward) in zip(axes.flat, kinds, strict=False):
        for name in names:
            points = sorted(
                (c.setting.length, r.wall.median)
                for c in cells
                for r in c.rows
                if (c.setting.dtype, c.setting.threads, r.backward, r.name)
                == (dtype, threads, backward, name)
            )
            width = 2.6 if name in (FUSED, FUSED_GPU) else 1.2
            axis.plot(*zip(*points, strict=True), marker=markers[name], label=name, linewidth=width)
        part = "forward + backward" if backward else "forward"
        axis.set_title(f"{dtype}, {threads} thread(s), {part}", fontsize=9)
        axis.set(xscale="log", yscale="log", xlabel="length T")
        lengths = sorted({c.setting.length for c in cells})
        axis.set_xticks(lengths, [str(n) for n in lengths], minor=False)
        axis.set_xticks([], minor=True)
        axis.set_yticks([0.25, 0.5, 1, 2, 4, 8], ["0.25", "0.5", "1", "2", "4", "8"])
        axis.set_yticks([], minor=True)
        axis.axhline(1.0, color="0.6", linewidth=0.8, zorder=0)
        axis.grid(alpha=0.25)
    for axis in list(axes.flat)[len(kinds) :]:
        axis.set_visible(False)
    for line in axes:
        line[0].set_ylabel("time / standard attention")
    by_name = {line.get_label(): line for axis in axes.flat for line in axis.get_lines()}
    handles = [by_name[name] for name in names]
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
