"""Present a benchmark: tables for the terminal, a plot of ratios against the sequence length."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from antiphase.benchmarks.attention import FUSED, STANDARD, Cell
from antiphase.benchmarks.model import BASELINE, Race
from antiphase.benchmarks.timing import Ratio

if TYPE_CHECKING:
    from antiphase.benchmarks.adapter import Cost as AdapterCost
    from antiphase.benchmarks.training import Cost as TrainingCost


def _ratio(r: Ratio, digits: int = 2) -> str:
    return f"{r.median:.{digits}f} ({r.low:.{digits}f}-{r.high:.{digits}f})"


def machine_lines(about: dict[str, Any]) -> list[str]:
    """Return what the figures are measured on, in lines."""
    rates = ", ".join(
        f"{name} {rate:.0f}" if isinstance(rate, float) else str(rate)
        for name, rate in about["micro_kernels_gflops"].items()
    )
    lines = [
        f"{about['cpu']}, {about['capability']}, torch {about['torch']}",
        f"micro-kernels, GFLOP/s of a tile on one thread: {rates}",
    ]
    if about["onednn_cap"]:
        lines.append(f"oneDNN is capped at {about['onednn_cap']}: its AMX code crashes here")
    return lines


def cell_table(cell: Cell) -> Table:
    """Return one cell as a table: ratios to standard attention, lower is better."""
    s = cell.setting
    shape = f"{s.batch}x{s.heads}x{s.width}, " + ("causal" if s.masked else "full")
    rows = "" if s.queries is None else f", {s.queries} query rows"
    table = Table(
        title=f"{s.dtype}, T = {s.length}{rows}, {s.threads} thread(s), {shape}; "
        f"GEMM {cell.gemm_gflops:.0f} GFLOP/s",
        title_justify="left",
    )
    table.add_column("alternative")
    columns = ("wall ratio (quartiles)", "CPU ratio (quartiles)", "to own one map", "ms")
    for name in (*columns, "GFLOP/s", "of GEMM", "peak MB"):
        table.add_column(name, justify="right")
    for title, backward in (("forward", False), ("forward + backward", True)):
        chosen = [row for row in cell.rows if row.backward == backward]
        if not chosen:
            continue
        table.add_section()
        table.add_row(f"[bold]{title}")
        for row in chosen:
            style = "green" if row.name == FUSED else "dim" if row.name == STANDARD else None
            peak = "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.0f}"
            table.add_row(
                row.name,
                _ratio(row.wall),
                _ratio(row.cpu),
                "-" if row.one_map is None else f"{row.one_map.median:.2f}",
                f"{row.milliseconds:.1f}",
                f"{row.gflops:.0f}",
                f"{row.gflops / cell.gemm_gflops:.0%}",
                peak,
                style=style,
            )
    return table


def race_table(race: Race) -> Table:
    """Return one race of models: ratios to `standard`, lower is better, and to DiffLlama."""
    table = Table(
        title=f"{race.title}: time over standard's (quartiles)",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("model", no_wrap=True)
    for name in ("params", "wall", "CPU", "DiffLlama / it", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in race.entries:
        faster = "-" if entry.to_diffllama is None else f"{1 / entry.to_diffllama.median:.2f}"
        table.add_row(
            entry.name,
            f"{entry.parameters / 1e6:.3g}M",
            f"{entry.wall.median:.2f}",
            _ratio(entry.cpu),
            faster,
            f"{entry.seconds:.2f}",
            style="dim" if entry.name == BASELINE else None,
        )
    return table


def training_table(cost: "TrainingCost") -> Table:
    """Return what a run costs beside a bare loop."""
    table = Table("measure")
    table.add_column("value (quartiles)", justify="right")
    for name, rate in cost.tokens_per_second.items():
        table.add_row(f"{name}, tokens/s", f"{rate:,.0f}")
    table.add_row("run / bare loop, wall", _ratio(cost.wall, 3))
    table.add_row("run / bare loop, CPU", _ratio(cost.cpu, 3))
    table.add_row("making the batches / bare loop, CPU", f"{cost.batches.median:.5f}")
    return table


def adapter_table(costs: "list[AdapterCost]", new_tokens: int) -> Table:
    """Return what DEX costs in decoding: ratios to the base model, lower is better."""
    table = Table("model")
    for name in ("tokens/s", "wall ratio (quartiles)", "CPU ratio (quartiles)"):
        table.add_column(name, justify="right")
    for cost in costs:
        rate = f"{new_tokens / cost.seconds:.1f}"
        table.add_row(cost.name, rate, _ratio(cost.wall, 3), _ratio(cost.cpu, 3))
    return table


def plot(cells: list[Cell], path: Path) -> None:
    """Draw the wall-time ratio to standard attention against the length, a panel a kind of cell."""
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
            width = 2.6 if name == FUSED else 1.2
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
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
