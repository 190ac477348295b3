"""What a model costs, as rows of a table: its shape, its parameters, and every mechanism in it."""

import torch

from antiphase.attention import MECHANISMS
from antiphase.models.config import AntiphaseConfig
from antiphase.models.locate import locate_model
from antiphase.models.presets import PRESETS, preset
from antiphase.models.summary import Summary, summarise
from antiphase.options import nearest

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MECHANISM_COLUMNS = [  # numbers of heads share one, so that the table fits 80 characters
    "mechanism",
    "heads / maps / kv",
    "ffn",
    "params",
    "more",
    "cache",
    "state",
    "FLOPs",
]


def find_config(target: str, attention: str | None = None) -> AntiphaseConfig:
    """Return the configuration of a preset or of a saved model.

    Args:
        target: a preset, or what `locate_model` finds: a model or run folder, a hub name.
        attention: another mechanism, with its default options; presets default to diff_v2.

    Raises:
        ValueError: nothing of that name exists, or it is no Antiphase model.
    """
    if target in PRESETS:
        return preset(target, attention or "diff_v2")
    try:
        place = locate_model(target)
    except ValueError as error:
        raise ValueError(
            f"{error}; presets are {', '.join(PRESETS)}{nearest(target, PRESETS)}"
        ) from error
    kind = AntiphaseConfig.get_config_dict(place)[0].get("model_type")
    if kind != "antiphase":
        raise ValueError(
            f"{target}: is a {kind!r} model; show supports 'antiphase' models and presets"
        )
    config = AntiphaseConfig.from_pretrained(place)
    return config if attention is None else with_attention(config, attention)


def with_attention(config: AntiphaseConfig, attention: str) -> AntiphaseConfig:
    """Return the same configuration with another mechanism and its default options."""
    fields = config.to_dict()
    if attention != config.attention:
        fields |= {"attention": attention, "attention_options": {}}
    return AntiphaseConfig.from_dict(fields)  # a loaded one may have fields of its own


def shape_rows(
    config: AntiphaseConfig, summary: Summary, context: int, dtype: str
) -> list[tuple[str, str]]:
    """Return names and values of a model's shape and of its costs per token."""
    options = ", ".join(f"{k}={v}" for k, v in config.attention_options.items())
    width = f"{summary.feed_forward_width:,}"
    if summary.feed_forward_width != config.intermediate_size:
        width += f" (requested {config.intermediate_size:,}; match={config.match})"
    heads = ", ".join(f"{n} {what.replace('_', ' ')}" for what, n in summary.heads.items())
    tied = ", tied" if config.tie_word_embeddings else ""
    state = f"{summary.state_bytes:,} bytes in fp32" if summary.state_bytes else "none"
    baseline = f"{config.num_attention_heads}, key/value {config.num_key_value_heads}"
    return [
        ("mechanism", config.attention),
        ("mechanism options", options or "defaults"),
        ("layers x width", f"{config.num_hidden_layers} x {config.hidden_size:,}"),
        ("heads of the baseline", baseline),
        ("heads of the mechanism", heads),
        ("head width", f"{config.head_dim}"),
        ("feed-forward", f"{config.feed_forward}, width {width}"),
        ("positions, norm", f"{config.position}, {config.norm}"),
        ("vocabulary size", f"{config.vocab_size:,}{tied}"),
        ("cache per token", f"{summary.cache_bytes:,} bytes in {dtype}"),
        ("running state", state),
        (f"FLOPs per token at {context:,}", f"{summary.flops:,}"),
    ]


def parameter_rows(summary: Summary) -> list[list[str]]:
    """Return one row per part of the model: its parameters, and its fraction of the total."""
    total = summary.parameters["total"]
    return [[part, f"{n:,}", f"{n / total:.1%}"] for part, n in summary.parameters.items()]


def summarise_mechanisms(
    config: AntiphaseConfig, context: int, dtype: str
) -> tuple[dict[str, Summary], dict[str, str]]:
    """Return the costs of every mechanism in this configuration, and why others do not fit it."""
    found: dict[str, Summary] = {}
    unfit: dict[str, str] = {}
    for name in MECHANISMS:
        try:
            found[name] = summarise(with_attention(config, name), context, DTYPES[dtype])
        except ValueError as error:
            unfit[name] = str(error)
    return found, unfit


def mechanism_rows(found: dict[str, Summary]) -> list[list[str]]:
    """Return one row per mechanism, under `MECHANISM_COLUMNS`.

    `more` is relative to standard attention, `cache` bytes per token, `state` bytes per sequence. A
    mechanism that does not fit has dashes.
    """
    baseline = found["standard"].parameters["total"]
    return [
        _mechanism_row(name, found[name], baseline)
        if name in found
        else [name, *["-"] * (len(MECHANISM_COLUMNS) - 1)]
        for name in MECHANISMS
    ]


def _mechanism_row(name: str, summary: Summary, baseline: int) -> list[str]:
    total, heads = summary.parameters["total"], summary.heads["heads"]
    return [
        name,
        f"{heads}/{summary.heads.get('maps', heads)}/{summary.heads['kv_heads']}",
        str(summary.feed_forward_width),
        _short(total),
        f"{total / baseline - 1:+.2%}",
        f"{summary.cache_bytes:,}",
        _short(summary.state_bytes, digits=3),
        _short(summary.flops),
    ]


def _short(n: float, digits: int = 4) -> str:
    """Return 12194688 as 12.19M."""
    for unit in ("", "k", "M", "G"):
        if n < 1000:
            return f"{n:.{digits}g}{unit}"
        n /= 1000
    return f"{n:.{digits}g}T"
