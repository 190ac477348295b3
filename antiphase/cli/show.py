"""`antiphase show`: what a model costs."""

from typing import Annotated, Any, Optional

import typer

from antiphase.cli.options import AsJson, Quiet, require_at_least, require_one_of
from antiphase.cli.output import Output


def show(
    target: Annotated[
        str, typer.Argument(help="a preset, a model or run folder, or a shipped model")
    ],
    attention: Annotated[
        Optional[str], typer.Option(help="mechanism; default diff_v2, or that of the saved model")
    ] = None,
    context: Annotated[int, typer.Option(help="number of tokens in the KV cache")] = 2048,
    dtype: Annotated[str, typer.Option(help="dtype of the KV cache: fp32, bf16 or fp16")] = "bf16",
    every: Annotated[
        bool, typer.Option("--every", help="compare all mechanisms in this shape")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show what a model costs: heads, parameters, KV cache bytes and FLOPs per token."""
    require_at_least(1, context=context)
    require_one_of(("fp32", "bf16", "fp16"), dtype=dtype)
    from antiphase.models import cost_table
    from antiphase.models.summary import summarise
    from antiphase.training.criterion import criterion_of

    output = Output(quiet=quiet, as_json=as_json)
    config = cost_table.find_config(target, attention)
    summary = summarise(config, context, cost_table.DTYPES[dtype])
    output.rows(("", target), cost_table.shape_rows(config, summary, context, dtype))
    output.rows(
        ("parameters", "number", "fraction"), cost_table.parameter_rows(summary), emphasis="total"
    )
    content: dict[str, Any] = {"config": config.to_dict(), "context": context, "dtype": dtype}
    content["costs"] = summary
    if (criterion := criterion_of(target)) is not None:
        output.note(f"trained to a criterion: {criterion}")
        content["criterion"] = criterion
    if every:
        found, unfit = cost_table.summarise_mechanisms(config, context, dtype)
        output.rows(
            cost_table.MECHANISM_COLUMNS,
            cost_table.mechanism_rows(found),
            title=f"every mechanism, match={config.match}; more: parameters relative to standard; "
            f"cache: bytes per token in {dtype}; state: bytes per sequence in fp32; "
            f"FLOPs per token at {context:,}",
            emphasis=config.attention,
        )
        for name, reason in unfit.items():
            output.note(f"{name}: does not fit this shape: {reason}")
        content["mechanisms"], content["unfit"] = found, unfit
    output.json(content)
