"""The configuration of a model: its mechanism, its sizes, and its other layers."""

import inspect
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import PreTrainedConfig

from antiphase.attention import Attention, mechanism
from antiphase.models.config_checks import (
    check_bidirectional,
    check_choice,
    check_masking,
    check_sizes,
)
from antiphase.models.config_fields import (
    check_fields,
    generation_fields,
    is_not_implemented,
    unknown_fields,
)
from antiphase.options import nearest

FEED_FORWARDS = {"swiglu": (3, 8 / 3), "relu": (2, 4.0)}  # matrices, default width / D
NORMS = ("rms", "layer")
NORM_POSITIONS = ("pre", "post")
POSITIONS = ("rope", "sinusoidal", "none")
MATCHES = ("parameters", "none")
INITIALISATIONS = ("scaled", "published")
FULL, SLIDING = "full_attention", "sliding_attention"  # transformers' names of layer types
HYBRID = "hybrid"  # and of a layer with keys, values and a running state
# What a saved model's config.json names for `trust_remote_code=True`: `saved_code.py` as a file.
_CODE = "modeling_antiphase"


class AntiphaseConfig(PreTrainedConfig):
    """Configuration of an Antiphase model.

    Args:
        attention: name of the mechanism, as in `antiphase.attention.MECHANISMS`.
        attention_options: the mechanism's own options.
        match: "parameters" changes the feed-forward width so that any two mechanisms have the same
            number of parameters (`feed_forward_width` is the actual width); "none" keeps it.
        vocab_size: number of tokens in the vocabulary.
        hidden_size: D, the width of the residual stream.
        intermediate_size: feed-forward width before matching; 8/3 D ("swiglu") or 4 D ("relu").
        num_hidden_layers: number of blocks.
        num_attention_heads: of standard attention at this size; the mechanism derives its own.
        num_key_value_heads: the same for keys and values; all heads by default.
        head_dim: width of the standard heads; hidden_size / num_attention_heads by default.
        feed_forward: "swiglu" or "relu".
        norm: "rms" or "layer".
        norm_position: "pre": x + f(norm(x)) and a last norm; "post": norm(x + f(x)), as in 2017.
        position: "rope", "sinusoidal" or "none".
        rope_parameters: transformers' RoPE settings: `rope_theta`, `rope_type` and its parameters.
        max_position_embeddings: the context length; RoPE's scaling types use it.
        rms_norm_eps: of all norms.
        attention_bias: whether the projections of attention have a bias.
        mlp_bias: whether the feed-forward layers have biases.
        is_causal: whether a token attends only to itself and earlier ones. False makes the stack a
            bidirectional encoder, without cache or windows.
        sliding_window: tokens that a token attends to in layers with a sliding window, the last of
            which is itself; None for no window.
        layer_types: "sliding_attention" or "full_attention" for each layer; with a
            `sliding_window`, all layers have it by default, of grouped_latent 3 of 4.
        attention_dropout: probability to drop a weight of the map that is applied to V, in
            training.
        residual_dropout: probability to drop a channel of the embedded tokens, and of what a
            branch adds to the residual stream, in training.
        attn_logit_softcapping: softmax scores s become c * tanh(s / c) with this c; None for no
            cap.
        initializer_range: standard deviation of the initial weights.
        initialisation: "scaled": attention enters the residual stream at a small scale, alike for
            all mechanisms, and its logits have unit variance (`antiphase.models.initialisation`);
            "published": N(0, initializer_range) everywhere and head-norm gains of 1, as in the
            public code. Loaded weights are not touched.
        branch_scale: factor of that small scale.
        query_key_std: standard deviation of the scaled W_Q and W_K; None for that of logits with
            unit variance. On text, 0.02 was as good or better in narrow models.
        tie_word_embeddings: whether the head shares the embedding's weights.
        scale_embedding: multiply embedded tokens by sqrt(D), as in 2017; not `inputs_embeds`.
        use_cache: whether the model returns a KV cache by default.
        pad_token_id: padding token, whose embedding is zero.
        bos_token_id: first token of a sequence.
        eos_token_id: token, or tokens, that end a sequence.
        **kwargs: fields of transformers' `PreTrainedConfig`.

    Raises:
        ValueError: a keyword that is unknown, or that names something these models do not
            implement; a choice that does not exist; sizes that do not fit together.
    """

    model_type = "antiphase"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "AntiphaseConfig",
        "AutoModel": "AntiphaseModel",
        "AutoModelForCausalLM": "AntiphaseForCausalLM",
        "AutoModelForMaskedLM": "AntiphaseForMaskedLM",
        "AutoModelForQuestionAnswering": "AntiphaseForQuestionAnswering",
        "AutoModelForSequenceClassification": "AntiphaseForSequenceClassification",
        "AutoModelForTokenClassification": "AntiphaseForTokenClassification",
    }
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
    # Inputs and outputs of the parts that pipeline parallelism puts on different devices.
    base_model_pp_plan: ClassVar[Any] = {
        "embed_tokens": (["input_ids"], ["inputs_embeds"]),
        "layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
        "norm": (["hidden_states"], ["hidden_states"]),
    }

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
        norm_position: str = "pre",
        position: str = "rope",
        rope_parameters: dict[str, Any] | None = None,
        max_position_embeddings: int = 2048,
        rms_norm_eps: float = 1e-5,
        attention_bias: bool = False,
        mlp_bias: bool = False,
        is_causal: bool = True,
        sliding_window: int | None = None,
        layer_types: list[str] | None = None,
        attention_dropout: float = 0.0,
        residual_dropout: float = 0.0,
        attn_logit_softcapping: float | None = None,
        initializer_range: float = 0.02,
        initialisation: str = "scaled",
        branch_scale: float = 1.0,
        query_key_std: float | None = None,
        tie_word_embeddings: bool = False,
        scale_embedding: bool = False,
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
        kv_heads = num_attention_heads if num_key_value_heads is None else num_key_value_heads
        self.num_key_value_heads = kv_heads
        default_width = hidden_size // max(num_attention_heads, 1)
        self.head_dim = default_width if head_dim is None else head_dim
        self.feed_forward = feed_forward
        self.norm = norm
        self.norm_position = norm_position
        self.position = position
        self.rope_parameters = rope_parameters
        self.max_position_embeddings = max_position_embeddings
        self.rms_norm_eps = rms_norm_eps
        self.attention_bias = attention_bias
        self.mlp_bias = mlp_bias
        self.is_causal = is_causal
        self.sliding_window = sliding_window
        self.attention_dropout = attention_dropout
        self.residual_dropout = residual_dropout
        self.attn_logit_softcapping = attn_logit_softcapping
        self.initializer_range = initializer_range
        self.initialisation = initialisation
        self.branch_scale = branch_scale
        self.query_key_std = query_key_std
        self.tie_word_embeddings = tie_word_embeddings
        self.scale_embedding = scale_embedding
        self.use_cache = use_cache and is_causal  # a bidirectional model has none
        self.pad_token_id = pad_token_id
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        check_choice("feed_forward", feed_forward, FEED_FORWARDS)
        check_choice("norm", norm, NORMS)
        check_choice("norm_position", norm_position, NORM_POSITIONS)
        check_choice("position", position, POSITIONS)
        check_choice("match", match, MATCHES)
        check_choice("initialisation", initialisation, INITIALISATIONS)
        check_fields(kwargs, self.own_fields(), feed_forward, attention)
        ratio = FEED_FORWARDS[feed_forward][1]
        default_width = max(8, round(ratio * hidden_size / 8) * 8)
        self.intermediate_size = default_width if intermediate_size is None else intermediate_size
        if head_dim is None and num_attention_heads > 0 and hidden_size % num_attention_heads:
            raise ValueError(
                f"num_attention_heads: {num_attention_heads} heads do not divide hidden_size "
                f"{hidden_size}; change one of them or give head_dim"
            )
        check_sizes(self)
        if (rope_parameters or {}).get("partial_rotary_factor", 1) != 1:
            raise ValueError(
                f"rope_parameters: got {rope_parameters}, but RoPE rotates all channels of a head; "
                "leave partial_rotary_factor out"
            )
        check_masking(self)
        if not is_causal:
            check_bidirectional("attention", attention)
        # DynamicCache(config=...) reads them; a model without windows or states has none.
        if (types := self._layer_types(layer_types)) is not None:
            self.layer_types = types
        self.base_model_tp_plan: dict[str, str] | None
        self.base_model_tp_plan = _tensor_parallel_plan(attention, feed_forward)
        _ = self.feed_forward_width  # raises for sizes that do not fit, before a model is built
        with self._even_head_dim():
            super().__init__(**kwargs)

    def validate(self) -> None:
        """Check the fields that transformers checks; it calls this before a file is written."""
        with self._even_head_dim():
            super().validate()

    @contextmanager
    def _even_head_dim(self) -> Iterator[None]:
        """Round `head_dim` down to an even width.

        transformers raises for an odd one even if no such head is rotated: without RoPE, in a
        recurrence, in a latent with rotary keys of their own. `attention_layer` checks those that
        are.
        """
        width = self.head_dim
        self.head_dim = width // 2 * 2
        try:
            yield
        finally:
            self.head_dim = width

    @classmethod
    def own_fields(cls) -> list[str]:
        """Return the names of the fields that these models read, beside those of transformers."""
        kinds = [kind for kind in cls.__mro__ if issubclass(kind, AntiphaseConfig)]
        names = [n for kind in reversed(kinds) for n in inspect.signature(kind.__init__).parameters]
        return [name for name in dict.fromkeys(names) if name not in ("self", "kwargs")]

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Return the configuration of a loaded config.json, changed by keywords.

        Args:
            config_dict: fields and values. An unknown one, perhaps of a later version, is kept with
                a warning; it is saved again with the configuration.
            **kwargs: changes of fields; `return_unused_kwargs` as in transformers.

        Raises:
            ValueError: a keyword is unknown, or the configuration is invalid.
        """
        own = cls.own_fields()
        changes = {n: v for n, v in kwargs.items() if n in own or is_not_implemented(n)}
        kwargs = {name: value for name, value in kwargs.items() if name not in changes}
        if not kwargs.get("return_unused_kwargs"):  # else the caller, a model class, raises
            others = {*kwargs} - {"return_unused_kwargs", "gguf_file"}
            check_fields(dict.fromkeys(others), own, "swiglu")
        fields = {**config_dict, **changes}
        if "branch_scale" not in fields:  # files older than the field: all were initialised so
            fields.setdefault("initialisation", "published")
        for name in generation_fields(fields, own):
            del fields[name]  # transformers drops them as well: they moved to GenerationConfig
        unknown = {name: fields.pop(name) for name in unknown_fields(fields, own)}
        if unknown:
            warnings.warn(
                f"config: unknown fields {', '.join(unknown)} are kept, but have no effect",
                stacklevel=2,
            )
        result = super().from_dict(fields, **kwargs)
        config = result[0] if isinstance(result, tuple) else result
        for name, value in unknown.items():
            setattr(config, name, value)
        return result

    @classmethod
    def from_json_file(cls, json_file: Any) -> Any:
        """Return the configuration of a config.json; unknown fields as in `from_dict`."""
        return cls.from_dict(cls._dict_from_json_file(json_file))

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save config.json, and the file that loads the model with `trust_remote_code=True`."""
        folder = Path(save_directory)
        if not folder.is_file():  # transformers raises for it
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(__file__).with_name("saved_code.py"), folder / f"{_CODE}.py")
        self.auto_map = {auto: f"{_CODE}.{ours}" for auto, ours in self.auto_classes.items()}
        super().save_pretrained(save_directory, *args, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Do nothing: `save_pretrained` writes the code and `auto_map` itself."""

    def attention_layer(self, layer: int = 0) -> Attention:
        """Return a new attention layer of this configuration.

        Args:
            layer: index of the block, from 0.
        """
        module = self._layer_of(self.attention, self.attention_options, layer)
        if self.position == "rope":
            module.check_rotary_widths("position='none'")
        return module

    def cross_attention_layer(self, layer: int) -> Attention | None:
        """Return a new cross-attention layer; None where a block has none.

        Args:
            layer: index of the block, from 0.
        """
        return None

    def layer_type(self, layer: int) -> str:
        """Return transformers' name for the type of a layer.

        Args:
            layer: index of the block, from 0.
        """
        types = getattr(self, "layer_types", None)
        return FULL if types is None else str(types[layer])

    def _layer_of(self, name: str, options: dict[str, Any], layer: int) -> Attention:
        return mechanism(name)(
            self.hidden_size,
            self.num_attention_heads,
            self.num_key_value_heads,
            head_dim=self.head_dim,
            layer=layer,
            bias=self.attention_bias,
            eps=self.rms_norm_eps,
            window=self.sliding_window if self.layer_type(layer) == SLIDING else None,
            dropout=self.attention_dropout,
            softcap=self.attn_logit_softcapping,
            **options,
        )

    def _layer_types(self, given: list[str] | None) -> list[str] | None:
        """Return the types of the layers, None if all have full attention and no state."""
        window, layers = self.sliding_window, self.num_hidden_layers
        for name in given or []:
            if name not in (FULL, SLIDING, HYBRID):
                raise ValueError(
                    f"layer_types: got {name!r}, allowed are {FULL!r} and {SLIDING!r}"
                    f"{nearest(str(name), (FULL, SLIDING))}"
                )
        if window is None:
            if SLIDING in (given or []):
                raise ValueError(
                    f"layer_types: {SLIDING!r} needs a sliding_window, the number of tokens"
                )
            return [HYBRID] * layers if mechanism(self.attention).running_state else None
        if given is None or HYBRID in given:
            every = mechanism(self.attention).full_attention_every or layers + 1
            return [SLIDING if (i + 1) % every else FULL for i in range(layers)]
        if len(given) != layers or SLIDING not in given:
            raise ValueError(
                f"layer_types: got {given} with sliding_window={window}, expected one of {FULL!r} "
                f"and {SLIDING!r} for each of {layers} layers, and a sliding one among them"
            )
        return list(given)

    def attention_surplus(self) -> int:
        """Return how many parameters a block's attention has more than standard attention."""
        with torch.device("meta"):  # counts parameters without allocating them
            return _count(self.attention_layer()) - _count(self._layer_of("standard", {}, 0))

    @property
    def feed_forward_width(self) -> int:
        """Return the actual width of the feed-forward layers, after matching parameters."""
        more = self.attention_surplus()
        if self.match == "none" or not more:
            return int(self.intermediate_size)
        matrices = FEED_FORWARDS[self.feed_forward][0]
        # Kernels are fast at multiples of 8; wide models stay within 0.25% of the baseline with it.
        step = 8 if self.hidden_size >= 512 else 1
        surplus = more / (matrices * self.hidden_size)
        width = round((self.intermediate_size - surplus) / step) * step
        if width < step:
            raise ValueError(
                f"match: {self.attention} has {more:,} parameters per layer more than "
                f"standard attention, which a feed-forward layer of width {self.intermediate_size} "
                "cannot compensate; raise intermediate_size or use match='none'"
            )
        return width


def _tensor_parallel_plan(attention: str, feed_forward: str) -> dict[str, str]:
    """Return how tensor parallelism splits the layers, of some mechanisms the feed-forward only."""
    of_mlp = {"gate_proj": "colwise", "up_proj": "colwise", "down_proj": "rowwise"}
    if feed_forward == "relu":
        del of_mlp["gate_proj"]
    of_attention = mechanism(attention).tensor_parallel
    return {
        **{f"layers.*.self_attn.{name}": style for name, style in of_attention.items()},
        **{f"layers.*.mlp.{name}": style for name, style in of_mlp.items()},
    }


def _count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
