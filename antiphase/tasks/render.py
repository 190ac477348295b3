"""Examples of a task in colours: needles, noise, questions and answers."""

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


def coloured(task: Task, count: int) -> list[Text]:
    """Return the first examples, a line each."""
    made = task.examples(range(count))
    lines = []
    for tokens, roles in zip(made.tokens, made.roles, strict=True):
        line = Text()
        for token, role in zip(tokens, roles, strict=True):
            line.append(task.words[token], style=STYLES[Role(role)]).append(" ")
        lines.append(line)
    return lines


def legend() -> Text:
    """Return what the colours mean."""
    line = Text()
    for role, style in STYLES.items():
        line.append(role.name.lower(), style=style).append("  ")
    return line
