"""`antiphase generate`: text from a saved model."""

from typing import Annotated, Optional

import typer

from antiphase.cli.options import require_at_least


def generate(
    model: Annotated[
        str, typer.Argument(help="a model or run folder, a shipped model, smollm2, or a hub name")
    ],
    prompt: Annotated[str, typer.Argument(help="the text to continue")],
    max_new_tokens: Annotated[int, typer.Option(help="number of new tokens")] = 100,
    temperature: Annotated[
        float, typer.Option(help="sampling temperature; 0 takes the most likely token")
    ] = 0.8,
    top_p: Annotated[
        float, typer.Option(help="fraction of the probability mass to sample from")
    ] = 0.95,
    seed: Annotated[int, typer.Option(help="sampling seed")] = 0,
    attn_implementation: Annotated[
        Optional[str],
        typer.Option(help="auto, reference, sdpa, fused_cpu, or any that is registered"),
    ] = None,
    compile_: Annotated[
        bool,
        typer.Option("--compile", help="compile decoding; the first token takes a minute or more"),
    ] = False,
) -> None:
    """Continue a prompt; tokens are printed as they are generated."""
    require_at_least(1, max_new_tokens=max_new_tokens)
    require_at_least(0, temperature=temperature)
    if not 0 < top_p <= 1:
        raise ValueError(f"--top-p: got {top_p}, expected more than 0 and at most 1")
    if not prompt:
        raise ValueError("prompt: is empty; give at least one token to continue from")
    from antiphase.models.generation import generate_text

    generate_text(
        model,
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        attn_implementation=attn_implementation,
        compiled=compile_,
    )
