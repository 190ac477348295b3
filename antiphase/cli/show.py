"""Tables of what a configuration costs, for `antiphase show`."""

import torch
from rich import box
from rich.table import Table

from antiphase.attention import MECHANISMS
from antiphase.models import PRESETS, AntiphaseConfig, preset
from antiphase.models.locate import locate_model
from antiphase.models.summary import Summary, summarise

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def configuration(target: str, attention: str | None) -> AntiphaseConfig:
    """Return the configuration of a preset, or of a saved model (a folder or a hub's name)."""
    if target in PRESETS:
        return preset(target, attention or "diff_v2")
    try:
        place = locate_model(target)
    except ValueError as error:
        raise ValueError(f"{error}; presets are {', '.join(PRESETS)}") from error
    kind = AntiphaseConfig.get_config_dict(place)[0].get("model_type")
    if kind != "antiphase":
        raise ValueError(
            f"{target}: is a {kind!r} model; show knows 'antiphase' models and presets"
        )
    config = AntiphaseConfig.from_pretrained(place)
    return config if attention is None else with_attention(config, attention)


def with_attention(config: AntiphaseConfig, attention: str) -> AntiphaseConfig:
    """Return the same configuration with another mechanism and its default options."""
    fields = config.to_dict()
    if attention != config.attention:
        fields |= {"attention": attention, "attention_options": {}}
    return AntiphaseConfig(**fields)


def one(config: AntiphaseConfig, context: int, dtype: str) -> list[Table]:
    """Return the tables of one model: its shape, then its parameters by part."""
    s = summarise(config, context, DTYPES[dtype])
    options = ", ".join(f"{k}={v}" for k, v in config.attention_options.items())
    shape = Table(title=config.attention, title_justify="left", show_header=False)
    width = f"{s.feed_forward_width:,}"
    if s.feed_forward_width != config.intermediate_size:
        width += f" (asked for {config.intermediate_size:,}; match={config.match})"
    rows = {
        "options": options or "defaults",
        "layers x width": f"{config.num_hidden_layers} x {config.hidden_size:,}",
        "baseline's heads": f"{config.num_attention_heads}, key/value {config.num_key_value_heads}",
        "its heads": _heads(s),
        "head width": f"{config.head_dim}",
        "feed-forward": f"{config.feed_forward}, width {width}",
        "positions, norm": f"{config.position}, {config.norm}",
        "vocabulary": f"{config.vocab_size:,}" + (", tied" if config.tie_word_embeddings else ""),
        "cache a token": f"{s.cache_bytes:,} bytes in {dtype}",
        "running state": f"{s.state_bytes:,} bytes" if s.state_bytes else "none",
        f"FLOPs a token at {context:,}": f"{s.flops:,}",
    }
    for name, text in rows.items():
        shape.add_row(name, text)
    parts = Table("part", title="parameters", title_justify="left")
    parts.add_column("count", justify="right")
    parts.add_column("share", justify="right")
    for name, n in s.parameters.items():
        style = "bold" if name == "total" else None
        parts.add_row(name, f"{n:,}", f"{n / s.parameters['total']:.1%}", style=style)
    return [shape, parts]


def every(config: AntiphaseConfig, context: int, dtype: str) -> Table:
    """Return one table of all mechanisms in this configuration, beside standard attention."""
    title = f"every mechanism, match={config.match}; cache in {dtype}, FLOPs at {context:,} tokens"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("mechanism", no_wrap=True)
    for column in ("heads", "maps", "kv", "ffn", "parameters", "more", "cache B", "FLOPs"):
        table.add_column(column, justify="right", no_wrap=True)
    baseline = summarise(with_attention(config, "standard"), context, DTYPES[dtype])
    for name in MECHANISMS:
        try:
            s = summarise(with_attention(config, name), context, DTYPES[dtype])
        except ValueError as refusal:
            table.add_row(name, *["-"] * 8)
            table.caption = f"{table.caption or ''}{name}: {refusal}\n"
            continue
        total, heads = s.parameters["total"], s.heads["heads"]
        table.add_row(
            name,
            str(heads),
            str(s.heads.get("maps", heads)),
            str(s.heads["kv_heads"]),
            f"{s.feed_forward_width:,}",
            _short(total),
            f"{total / baseline.parameters['total'] - 1:+.2%}",
            f"{s.cache_bytes:,}",
            _short(s.flops),
            style="bold" if name == config.attention else None,
        )
    return table


def _short(n: float) -> str:
    """Return 12194688 as 12.19M."""
    for unit in ("", "k", "M", "G"):
        if n < 1000:
            return f"{n:.4g}{unit}"
        n /= 1000
    return f"{n:.4g}T"


def _heads(s: Summary) -> str:
    return ", ".join(f"{n} {what.replace('_', ' ')}" for what, n in s.heads.items())
