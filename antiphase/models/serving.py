"""How a server sees a model, and the command that starts one: what `antiphase serve` does."""

import json
import shutil
from pathlib import Path

import torch

from antiphase.attention import MECHANISMS
from antiphase.attention.base import Attention
from antiphase.models.config import AntiphaseConfig
from antiphase.models.locate import locate_model


def served_mechanisms() -> list[str]:
    """Return the names of the mechanisms that a server's attention kernels compute."""
    base = Attention.function_heads
    return [name for name, kind in MECHANISMS.items() if kind.function_heads is not base]


def served_heads(config: AntiphaseConfig) -> tuple[int, int, int]:
    """Return the numbers of query heads and key/value heads, and their width, as a server counts.

    A server sizes one standard attention per layer: V2 is one of twice the query heads.

    Args:
        config: of the model.

    Raises:
        ValueError: one call of standard attention does not compute the mechanism.
    """
    with torch.device("meta"):
        layer = config.attention_layer()
    if layer.function_head_counts is None:
        raise ValueError(
            f"attention: {config.attention} is not computed by one call of standard attention, so "
            f"a server's attention kernels do not fit; allowed are {', '.join(served_mechanisms())}"
        )
    return *layer.function_head_counts, layer.head_dim


def serve_command(
    model: str,
    *,
    port: int = 8000,
    dtype: str = "auto",
    max_model_len: int | None = None,
    tensor_parallel: int = 1,
    executable: str = "vllm",
) -> list[str]:
    """Return the command that serves a model with vLLM.

    Args:
        model: a shipped model, a model folder, a run folder or a hub name.
        port: of the HTTP server.
        dtype: of the weights: "auto" (that of the checkpoint), "float32", "bfloat16" or "float16".
        max_model_len: longest sequence; the model's `max_position_embeddings` by default.
        tensor_parallel: number of devices that the heads are split over.
        executable: vLLM's command.

    Raises:
        ValueError: no such model, a mechanism that vLLM cannot compute, or heads that cannot be
            split.
    """
    folder = locate_model(model)
    command = [executable, "serve", folder, "--port", str(port), "--dtype", dtype]
    fields = _fields(Path(folder))
    if fields.get("model_type") == AntiphaseConfig.model_type:
        config = AntiphaseConfig.from_dict(fields)
        _check_split(config, tensor_parallel)
        max_model_len = max_model_len or config.max_position_embeddings
    if fields and not any(Path(folder).glob("tokenizer*")):
        command += ["--skip-tokenizer-init"]  # requests hold token ids
    if max_model_len is not None:
        command += ["--max-model-len", str(max_model_len)]
    if tensor_parallel > 1:
        command += ["--tensor-parallel-size", str(tensor_parallel)]
    return command


def require_vllm(executable: str) -> None:
    """Raise with the way to install it if vLLM's command is missing.

    Args:
        executable: a name or a path.

    Raises:
        ValueError: there is no such command.
    """
    if shutil.which(executable) is None:
        raise ValueError(
            f"--executable: no command {executable!r}; vLLM needs an environment of its own: "
            "docs/serving_environment.sh FOLDER makes one for CPUs, then pass FOLDER/bin/vllm"
        )


def _fields(folder: Path) -> dict[str, object]:
    """Return the fields of a folder's config.json; none for a name on the hub."""
    path = folder / "config.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def _check_split(config: AntiphaseConfig, ranks: int) -> None:
    q_heads, kv_heads, _ = served_heads(config)
    width = config.feed_forward_width
    if kv_heads % ranks or width % ranks:
        raise ValueError(
            f"--tensor-parallel: got {ranks}, which does not divide the {q_heads} query heads, "
            f"{kv_heads} key/value heads and feed-forward width {width}, of which each device "
            "holds a part"
        )
