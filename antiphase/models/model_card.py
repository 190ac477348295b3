"""The model card that is saved beside the weights."""

from pathlib import Path
from typing import Any

MODEL_TAGS = ["antiphase", "differential-attention"]

_CARD = """---
library_name: transformers
pipeline_tag: {pipeline}
tags:
{tags}
---

# {title}

A model with `{attention}` attention, created with Antiphase.

```python
import antiphase.models  # pip install "antiphase @ git+https://github.com/OWNER/antiphase"
from transformers import {auto}

model = {auto}.from_pretrained("path/to/this/model")
```

Tools that open a model by its path find the package with `trust_remote_code=True`.

| | |
|---|---|
| mechanism | `{attention}` {options} |
| parameters | {parameters:,} |
| layers x width | {layers} x {width} |
| heads | {heads} |
| feed-forward | {feed_forward}, width {feed_forward_width} |
| vocabulary size | {vocabulary:,} |
"""


_PIPELINES = {  # by the Auto class
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForQuestionAnswering": "question-answering",
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSeq2SeqLM": "text2text-generation",
    "AutoModel": "feature-extraction",
}
_GENERATED = "This model card has been automatically generated"  # in transformers' own card


def write_card(model: Any, folder: str | Path) -> None:
    """Write README.md into a saved model's folder; keep one that a person wrote.

    Args:
        model: an Antiphase model.
        folder: where it was saved.
    """
    path = Path(folder) / "README.md"
    if not path.parent.is_dir():
        return
    if path.exists() and _GENERATED not in path.read_text(encoding="utf-8"):
        return
    config = model.config
    by_class = {ours: auto for auto, ours in config.auto_classes.items()}
    auto = by_class.get(type(model).__name__, "AutoModel")
    counts = config.attention_layer().head_counts
    text = _CARD.format(
        tags="\n".join(f"- {tag}" for tag in [*MODEL_TAGS, config.attention.replace("_", "-")]),
        pipeline=_PIPELINES.get(auto, "text-generation"),
        auto=auto,
        title=path.parent.resolve().name,
        attention=config.attention,
        options=config.attention_options or "",
        parameters=model.num_parameters(),
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=", ".join(f"{n} {what.replace('_', ' ')}" for what, n in counts.items()),
        feed_forward=config.feed_forward,
        feed_forward_width=config.feed_forward_width,
        vocabulary=config.vocab_size,
    )
    path.write_text(text, encoding="utf-8")
