"""`antiphase serve`: the vLLM command for a model."""

from typing import Annotated, Optional

import typer

from antiphase.cli.options import require_at_least, require_one_of


def serve(
    model: Annotated[
        str, typer.Argument(help="a model or run folder, a shipped model, or a hub name")
    ],
    run: Annotated[bool, typer.Option("--run", help="execute the command, too")] = False,
    port: Annotated[int, typer.Option(help="of the HTTP server")] = 8000,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16")] = "auto",
    max_model_len: Annotated[
        Optional[int], typer.Option(help="longest sequence; default: the model's context length")
    ] = None,
    tensor_parallel: Annotated[
        int, typer.Option(help="number of devices to split the heads over")
    ] = 1,
    executable: Annotated[str, typer.Option(help="vLLM's command, a name or a path")] = "vllm",
) -> None:
    """Print the vLLM command that serves a model; with `--run`, execute it."""
    require_one_of(("auto", "float32", "bfloat16", "float16"), dtype=dtype)
    require_at_least(1, port=port, max_model_len=max_model_len, tensor_parallel=tensor_parallel)
    import os
    import shlex

    from antiphase.models.serving import require_vllm, serve_command

    command = serve_command(
        model,
        port=port,
        dtype=dtype,
        max_model_len=max_model_len,
        tensor_parallel=tensor_parallel,
        executable=executable,
    )
    typer.echo(shlex.join(command))
    if run:
        require_vllm(executable)
        os.execvp(command[0], command)
