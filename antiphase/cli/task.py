"""`antiphase task`: examples of a synthetic task."""

from typing import Annotated, Optional

import typer

from antiphase.cli.options import AsJson, Quiet, list_option, require_at_least, set_option
from antiphase.cli.output import Output, listing


def task(
    name: Annotated[Optional[str], typer.Argument(help="name of the task; see --list")] = None,
    show: Annotated[int, typer.Option(help="number of examples")] = 3,
    split: Annotated[str, typer.Option(help="train, validation or test")] = "train",
    seed: Annotated[int, typer.Option(help="seed of the examples")] = 0,
    setting: Annotated[Optional[list[str]], set_option("an option of the task")] = None,
    list_tasks: Annotated[bool, list_option("the tasks")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show examples of a synthetic task, colored by the role of each token."""
    from antiphase.tasks.registry import TASKS
    from antiphase.tasks.registry import task as find

    output = Output(quiet=quiet, as_json=as_json)
    if list_tasks:
        summaries = {name: entry.summary for name, entry in TASKS.items()}
        listing(output, summaries, "task", "summary")
        return
    if name is None:
        raise ValueError("task: give the name of a task; --list shows them")
    require_at_least(1, show=show)
    from antiphase.training.recipe import parse_settings

    options = parse_settings(setting or [])
    for option, flag in {"split": "--split", "size": "--show", "seed": "--seed"}.items():
        if option in options:
            raise ValueError(f"--set {option}: is no option of the task; use {flag}")
    dataset = find(name)(split=split, size=show, seed=seed, **options)
    from antiphase.tasks.base import Role
    from antiphase.tasks.render import render_examples, render_legend

    output.note(str(dataset.options))
    output.note(f"vocabulary size {dataset.vocab_size}; accuracy of a guess {dataset.chance:.1%}")
    for line in render_examples(dataset, show):
        output.line(line)
    if not quiet:
        output.line(render_legend())
    if as_json:
        batch = dataset.examples(range(show))
        examples = [
            {
                "tokens": [dataset.id_to_token[t] for t in batch.tokens[i]],
                "roles": [Role(role).name.lower() for role in batch.roles[i]],
                "input_ids": batch.tokens[i],
                "labels": batch.labels[i],
                "needle": batch.needle[i],
            }
            for i in range(show)
        ]
        about = {"task": name, "options": dataset.options, "split": split, "seed": seed}
        about |= {"vocab_size": dataset.vocab_size, "chance": dataset.chance}
        output.json(about | {"examples": examples})
