"""Examples of a task as colored text: the color of a token is its role."""

from rich.text import Text

from antiphase.tasks.base import Role, Task

STYLES = {
    Role.PAD: "dim",
    Role.SINK: "dim",
    Role.HAYSTACK: "",
    Role.NOISE: "yellow",
    Role.KEY: "bold cyan",
    Role.ANSWER: "bold green",
    Role.QUERY: "cyan",
    Role.TARGET: "bold black on green",
}


def render_examples(task: Task, count: int) -> list[Text]:
    """Return the first `count` examples of a task, one line each."""
    batch = task.examples(range(count))
    lines = []
    for tokens, roles in zip(batch.tokens, batch.roles, strict=True):
        line = Text()
        for token, role in zip(tokens, roles, strict=True):
            line.append(task.id_to_token[token], style=STYLES[Role(role)]).append(" ")
        lines.append(line)
    return lines


def render_legend() -> Text:
    """Return the name of every role in its color."""
    line = Text()
    for role, style in STYLES.items():
        line.append(role.name.lower(), style=style).append("  ")
    return line
