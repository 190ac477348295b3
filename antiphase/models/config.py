"""The configuration of a model: a word for its mechanism, sizes, and what surrounds attention."""

from typing import Any

import torch
from transformers import PreTrainedConfig

from antiphase.attention import Attention, mechanism

FEED_FORWARDS = {"swiglu": (3, 8 / 3), "relu": (2, 4.0)}  # matrices, default width over D
NORMS = ("rms", "layer")
POSITIONS = ("rope", "sinusoidal", "none")
MATCHES = ("parameters", "none")


class AntiphaseConfig(PreTrainedConfig):
    """Configuration of an Antiphase model.

    `attention` names the mechanism and `attention_options` are its own. Heads are the baseline's:
    the mechanism derives its own. With `match="parameters"` the feed-forward width makes up for
    what a mechanism costs more or less than standard attention, so that any two mechanisms of one
    config have equal parameters (`feed_forward_width` is the actual width); with "none" it stays.
    """

    model_type = "antiphase"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    def __init__(
        self,
        attention: str = "diff_v2",
        attention_options: dict[str, Any] | None = None,
        match: str = "parameters",
        vocab_size: int = 32000,
        hidden_size: int = 768,
        intermediate_size: int | None = None,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        feed_forward: str = "swiglu",
        norm: str = "rms",
        position: str = "rope",
        rope_parameters: dict[str, Any] | None = None,
        max_position_embeddings: int = 2048,
        rms_norm_eps: float = 1e-5,
        attention_bias: bool = False,
        initializer_range: float = 0.02,
        tie_word_embeddings: bool = False,
        use_cache: bool = True,
        pad_token_id: int | None = None,
        bos_token_id: int | None = None,
        eos_token_id: int | list[int] | None = None,
        **kwargs: Any,
    ) -> None:
        self.attention = attention
        self.attention_options = dict(attention_options or {})
        self.match = match
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        self.head_dim = head_dim or hidden_size // max(num_attention_heads, 1)
        self.feed_forward = feed_forward
        self.norm = norm
        self.position = position
        self.rope_parameters = rope_parameters
        self.max_position_embeddings = max_position_embeddings
        self.rms_norm_eps = rms_norm_eps
        self.attention_bias = attention_bias
        self.initializer_range = initializer_range
        self.tie_word_embeddings = tie_word_embeddings
        self.use_cache = use_cache
        self.pad_token_id = pad_token_id
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        _choice("feed_forward", feed_forward, FEED_FORWARDS)
        _choice("norm", norm, NORMS)
        _choice("position", position, POSITIONS)
        _choice("match", match, MATCHES)
        ratio = FEED_FORWARDS[feed_forward][1]
        self.intermediate_size = intermediate_size or max(8, round(ratio * hidden_size / 8) * 8)
        if head_dim is None and num_attention_heads > 0 and hidden_size % num_attention_heads:
            raise ValueError(
                f"num_attention_heads: {num_attention_heads} heads do not divide hidden_size "
                f"{hidden_size}; change one of them or give head_dim"
            )
        if mechanism(attention).running_state:
            # transformers' word for a layer with keys, values and a running state
            self.layer_types = ["hybrid"] * num_hidden_layers
        kwargs.pop("layer_types", None)
        _ = self.feed_forward_width  # refuses what does not go together before a model is made
        super().__init__(**kwargs)

    def attention_layer(self, layer: int = 0) -> Attention:
        """Return one attention layer of this configuration."""
        return self._layer_of(self.attention, self.attention_options, layer)

    def _layer_of(self, name: str, options: dict[str, Any], layer: int) -> Attention:
        module = mechanism(name)(
            self.hidden_size,
            self.num_attention_heads,
            self.num_key_value_heads,
            head_dim=self.head_dim,
            layer=layer,
            bias=self.attention_bias,
            eps=self.rms_norm_eps,
            **options,
        )
        if self.position == "rope" and any(width % 2 for width in module.rotary_widths):
            raise ValueError(
                f"position: RoPE turns pairs of channels, and {name} has heads of width "
                f"{module.rotary_widths}; use even widths, or position='none'"
            )
        return module

    @property
    def feed_forward_width(self) -> int:
        """Return the actual width of the feed-forward layers."""
        with torch.device("meta"):
            here = _count(self.attention_layer())
            baseline = _count(self._layer_of("standard", {}, 0))
        if self.match == "none" or here == baseline:
            return int(self.intermediate_size)
        matrices = FEED_FORWARDS[self.feed_forward][0]
        # A multiple of 8 is kinder to kernels, where it is fine enough to stay within 0.25%.
        step = 8 if self.hidden_size >= 512 else 1
        surplus = (here - baseline) / (matrices * self.hidden_size)
        width = round((self.intermediate_size - surplus) / step) * step
        if width < step:
            raise ValueError(
                f"match: {self.attention} has {here - baseline:,} parameters a layer more than "
                f"standard attention, which a feed-forward layer of width {self.intermediate_size} "
                "cannot make up for; raise intermediate_size or use match='none'"
            )
        return width


def _count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _choice(name: str, value: str, allowed: Any) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: got {value!r}, allowed are {', '.join(allowed)}")
