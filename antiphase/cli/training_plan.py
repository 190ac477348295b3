"""What `antiphase train --plan` prints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphase.cli.output import Output

if TYPE_CHECKING:
    from antiphase.training.recipe import Recipe

ROWS = {
    "weights": "weights, fp32, sharded",
    "gradients": "gradients, fp32, sharded",
    "optimiser": "AdamW's moments, fp32, sharded",
    "gathered": "gathered weights and gradients",
    "activations": "activations",
    "temporary": "logits and their gradient, or a block computed again",
}


def print_plan(
    output: Output,
    source: str,
    recipe: "Recipe",
    settings: Sequence[str],
    hardware: tuple[int, float, float, float],
) -> None:
    """Print the plan of a recipe.

    Args:
        output: where to.
        source: name of the recipe.
        recipe: with all settings.
        settings: of the command line, `name=value`.
        hardware: number of devices, bytes and FLOP/s of one, and the fraction of these.
    """
    from antiphase.training.launch import PACKED_TEXT, launch_lines, pack_line
    from antiphase.training.plan import USABLE, Hardware, plan

    found = plan(recipe, Hardware(*hardware))
    memory, devices, room = found.memory, hardware[0], hardware[1]
    rows = [[text, f"{getattr(memory, name) / 1e9:.2f}"] for name, text in ROWS.items()]
    rows += [["total", f"{memory.total / 1e9:.2f}"], ["usable", f"{USABLE * room / 1e9:.2f}"]]
    output.note(
        f"{source}: {found.parameters / 1e9:.3g}B parameters ({recipe.size}, {recipe.attention}), "
        f"{recipe.precision}, activation checkpointing {'on' if recipe.checkpointing else 'off'}, "
        f"on {devices} devices of {room / 1e9:g} GB"
    )
    output.rows(["memory of a rank", "GB"], rows, emphasis="total")
    output.line(
        f"{found.sequences} sequences of {found.length:,} tokens in a rank, "
        f"accumulate={found.recipe.accumulate}: {'fits' if found.fits else 'does NOT fit'}"
    )
    if found.recipe.accumulate != recipe.accumulate:
        output.line(f"accumulate={recipe.accumulate}, as the recipe has it, does not fit")
    output.line(
        f"{found.tokens_per_second:,.0f} tokens/s at {hardware[3]:.0%} of "
        f"{hardware[2] / 1e12:g} TFLOP/s ({found.flops / 1e9:.3g} GFLOP a token); "
        f"{found.tokens / 1e9:.3g}B tokens: {found.hours:,.0f} hours"
    )
    shown = list(settings)
    if found.recipe.accumulate != recipe.accumulate:
        shown = [text for text in shown if not text.startswith("accumulate=")]
        shown.append(f"accumulate={found.recipe.accumulate}")
    if pack := pack_line(recipe):
        output.line(
            "text, once before the run, on a machine with many cores; then add --set "
            f"task_options.text=packed:{PACKED_TEXT} to the run:\n  {pack}"
        )
    lines = launch_lines(source, shown, devices)
    for name, line in lines.items():
        output.line(f"{name}:\n  {line}")
    output.note('The line for Ray needs `pip install "ray[default,train]"` on every node.')
    output.json(
        {
            "recipe": found.recipe.as_dict(),
            "parameters": found.parameters,
            "memory": {**{name: getattr(memory, name) for name in ROWS}, "total": memory.total},
            "fits": found.fits,
            "tokens": found.tokens,
            "tokens_per_second": found.tokens_per_second,
            "hours": found.hours,
            "pack": pack,
            "launch": lines,
        }
    )
