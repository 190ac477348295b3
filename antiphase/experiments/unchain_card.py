"""The card of a changed model: what was done to it, before and after, and how to use it."""

from pathlib import Path
from typing import Any

from antiphase.analysis.before_after_table import COLUMNS, result_rows
from antiphase.experiments.report.markdown import markdown_table
from antiphase.pretrained.methods import METHODS

CARD = """# {model}, {method}

{what}: {trained:,} numbers trained for {steps} steps of {batch_size} x {length} tokens
({tokens:,} in all) of {text}; seed {seed}, peak rate {lr:g}, {precision}, on {cpu}.

{table}

![before and after](change.png)

Held-out text: {held_out} texts of {length} tokens of the same sources, never trained on. Needles:
{questions} questions in words, {needles} needles in at most {question_length} tokens. Intervals are
95%, over texts or questions; one run says nothing about another seed.

{use}
"""


def write_unchain_card(folder: Path, results: dict[str, Any]) -> None:
    """Write README.md."""
    s = dict(results["settings"])
    table = markdown_table(COLUMNS, result_rows(results))
    tokens = s["steps"] * s["batch_size"] * s["length"]
    use = """```python
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("model")
```"""
    if s["method"] == "v2":
        use = use.replace("```python\n", "```python\nimport antiphase.models  # its class\n")
    s["text"] = ", ".join(s["text"])
    text = CARD.format(
        **s,
        what=METHODS[s["method"]],
        trained=results["trained_parameters"],
        tokens=tokens,
        cpu=results["environment"]["cpu"],
        table=table,
        use=use,
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
