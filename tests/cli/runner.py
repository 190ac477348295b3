"""What the tests of the command line share: run a command in this process, and save a model."""

from pathlib import Path

from typer.testing import CliRunner

from antiphase.cli import app


def invoke(*arguments: str, env: dict[str, str] | None = None):
    """Run a command as `antiphase` would; `stdout`, `stderr` and both as `output`."""
    return CliRunner().invoke(app, list(arguments), env=env)


def save_model(folder: Path, vocabulary: int = 61) -> Path:
    """Save a tiny model with a tokenizer of single letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from tests.models.tiny import model

    letters = {chr(ord("A") + i): i for i in range(58)} | {"<unk>": 58}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    model("diff_v1", vocab_size=vocabulary).save_pretrained(folder)
    return folder
