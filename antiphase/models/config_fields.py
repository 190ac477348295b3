"""Which keywords `AntiphaseConfig` accepts beside its own fields.

transformers stores any keyword as an attribute. A misspelt field would silently keep its default,
and a field of another architecture (`resid_pdrop`) would be stored without any effect.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from transformers import GenerationConfig, PreTrainedConfig

from antiphase.attention import mechanism
from antiphase.options import nearest

# What transformers itself reads or writes in any configuration, beside its dataclass fields.
_TRANSFORMERS_FIELDS = {field.name for field in dataclasses.fields(PreTrainedConfig)} | {
    "attn_implementation",
    "auto_map",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "quantization_config",
    "rope_scaling",
    "rope_theta",
    "tokenizer_class",
    "torch_dtype",
}

# Fields of transformers that these models do not implement, with the values that turn them off.
_NOT_IMPLEMENTED: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "attention_chunk_size": (None,),
    "attention_probs_dropout_prob": (0,),
    "attn_pdrop": (0,),
    "chunk_size_feed_forward": (0,),
    "dropout": (0,),
    "embd_pdrop": (0,),
    "embedding_multiplier": (1,),
    "experts_implementation": (None,),
    "final_logit_softcapping": (None,),
    "hidden_dropout": (0,),
    "hidden_dropout_prob": (0,),
    "is_encoder_decoder": (False,),
    "logits_scaling": (1,),
    "model_type": ("antiphase",),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "partial_rotary_factor": (None, 1),
    "per_layer_config": (None,),
    "pretraining_tp": (1,),
    "query_pre_attn_scalar": (None,),
    "resid_pdrop": (0,),
    "residual_multiplier": (1,),
    "tie_last_hidden_states": (None, True),
    "use_qk_norm": (False,),
    "use_sliding_window": (False,),
}
_ACTIVATIONS = {"swiglu": ("silu", "swish"), "relu": ("relu",)}  # hidden_act by feed_forward

# What other architectures call our fields, where the spelling is too far off to guess.
_OTHER_NAMES = {
    "activation_function": "feed_forward",
    "d_ff": "intermediate_size",
    "d_model": "hidden_size",
    "layer_norm_eps": "rms_norm_eps",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "num_layers": "num_hidden_layers",
}


def check_fields(
    given: Mapping[str, Any],
    own: Collection[str],
    feed_forward: str,
    attention: str | None = None,
) -> None:
    """Raise for a keyword that would have no effect.

    Args:
        given: the keywords that are not fields of `AntiphaseConfig` itself.
        own: the names of its own fields.
        feed_forward: of the configuration; says which `hidden_act` is implemented.
        attention: name of the mechanism, if known; the error then finds its options.

    Raises:
        ValueError: a keyword is unknown, or a field of transformers that these models do not
            implement has a value that would turn it on.
    """
    for name in unknown_fields(given, own):
        raise ValueError(_unknown(name, own, attention))
    for name, value in given.items():
        off = _off_values(name, feed_forward)
        if off is not None and value not in off:
            raise ValueError(
                f"{name}: got {value!r}, which Antiphase models do not implement; leave it out or "
                f"pass {' or '.join(map(repr, off))}"
            )


def unknown_fields(given: Collection[str], own: Collection[str]) -> list[str]:
    """Return the names that neither `AntiphaseConfig` nor transformers knows."""
    return [
        name
        for name in given
        if name not in own
        and name not in _TRANSFORMERS_FIELDS
        and _off_values(name, "swiglu") is None
        and not name.startswith("_")  # transformers' private bookkeeping
    ]


def is_not_implemented(name: str) -> bool:
    """Return whether a name is a field of transformers that these models do not implement."""
    return _off_values(name, "swiglu") is not None


def generation_fields(given: Collection[str], own: Collection[str]) -> set[str]:
    """Return the names that transformers once kept in a config and now in `GenerationConfig`."""
    return {*given} & {*GenerationConfig().to_dict()} - {*own} - _TRANSFORMERS_FIELDS


def _off_values(name: str, feed_forward: str) -> tuple[Any, ...] | None:
    if name in ("hidden_act", "hidden_activation"):
        return _ACTIVATIONS[feed_forward]
    return _NOT_IMPLEMENTED.get(name)


def _unknown(name: str, own: Collection[str], attention: str | None) -> str:
    said = f"AntiphaseConfig has no field {name!r}"
    if attention is not None:
        options = dataclasses.fields(mechanism(attention).Options)
        if name in {option.name for option in options}:
            advice = f"pass attention_options={{{name!r}: ...}}"
            return f"{said}: it is an option of {attention!r}; {advice}"
    if generation_fields([name], own):
        return f"{said}: it is a setting of generation; pass it to generate()"
    if name in _OTHER_NAMES:
        return f"{said}; did you mean {_OTHER_NAMES[name]!r}?"
    hint = nearest(name, [*own, *sorted(_TRANSFORMERS_FIELDS)])
    return said + (hint or f"; its fields are {', '.join(own)}")
