"""The configuration of an encoder-decoder, and the 2017 Transformer as one."""

from typing import Any, ClassVar

from antiphase.attention import Attention
from antiphase.models.config import AntiphaseConfig
from antiphase.models.config_checks import check_bidirectional, check_choice, check_cross

# Sizes of the 2017 Transformer (arXiv 1706.03762, table 3), and a small one for a laptop.
TRANSFORMER_SIZES: dict[str, dict[str, Any]] = {
    "nano": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "base": {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8},
    "big": {
        "hidden_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 16,
        "residual_dropout": 0.3,
    },
}
_VOCABULARIES = {"nano": 128, "base": 37_000, "big": 37_000}


class AntiphaseSeq2SeqConfig(AntiphaseConfig):
    """Configuration of an encoder-decoder.

    The fields of `AntiphaseConfig` are those of the decoder; the encoder has the same, except for
    those below. Sizes, vocabulary and kinds of layers are shared.

    Args:
        attention: mechanism of the decoder's self-attention.
        attention_options: its options.
        num_hidden_layers: number of the decoder's blocks.
        encoder_layers: number of the encoder's blocks; `num_hidden_layers` by default.
        encoder_attention: mechanism of the encoder; `attention` by default. It has to be one that
            can be bidirectional.
        encoder_attention_options: its options; with the default mechanism those of `attention`.
        cross_attention: mechanism by which the decoder attends to the encoder's output; `attention`
            by default. It has to be one whose rows do not depend on other queries.
        cross_attention_options: its options; with the default mechanism those of `attention`.
        tie_word_embeddings: whether encoder, decoder and head share one matrix of embeddings.
        pad_token_id: padding token, whose embedding is zero.
        decoder_start_token_id: first token of the decoder's input; the padding token by default.
        is_causal: always True, of the decoder.
        is_encoder_decoder: always True.
        **kwargs: the other fields of `AntiphaseConfig`. A `sliding_window` is one of the decoder's
            own tokens: encoder and cross-attention attend to the complete input.

    Raises:
        ValueError: as `AntiphaseConfig`; or a mechanism that cannot be an encoder's or
            cross-attention, with the reason.
    """

    model_type = "antiphase_seq2seq"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "AntiphaseSeq2SeqConfig",
        "AutoModel": "AntiphaseSeq2SeqModel",
        "AutoModelForSeq2SeqLM": "AntiphaseForConditionalGeneration",
    }
    base_model_pp_plan: ClassVar[Any] = None

    def __init__(
        self,
        attention: str = "diff_v2",
        attention_options: dict[str, Any] | None = None,
        num_hidden_layers: int = 12,
        encoder_layers: int | None = None,
        encoder_attention: str | None = None,
        encoder_attention_options: dict[str, Any] | None = None,
        cross_attention: str | None = None,
        cross_attention_options: dict[str, Any] | None = None,
        tie_word_embeddings: bool = True,
        pad_token_id: int | None = None,
        decoder_start_token_id: int | None = None,
        is_causal: bool = True,
        is_encoder_decoder: bool = True,
        **kwargs: Any,
    ) -> None:
        def or_decoders(
            name: str | None, options: dict[str, Any] | None
        ) -> tuple[str, dict[str, Any]]:
            default = attention_options if name in (None, attention) else None
            return name or attention, dict((default if options is None else options) or {})

        self.encoder_layers = num_hidden_layers if encoder_layers is None else encoder_layers
        self.encoder_attention, self.encoder_attention_options = or_decoders(
            encoder_attention, encoder_attention_options
        )
        self.cross_attention, self.cross_attention_options = or_decoders(
            cross_attention, cross_attention_options
        )
        check_bidirectional(
            "encoder_attention", self.encoder_attention, default=encoder_attention is None
        )
        check_cross("cross_attention", self.cross_attention, default=cross_attention is None)
        start = pad_token_id if decoder_start_token_id is None else decoder_start_token_id
        self.decoder_start_token_id = start
        model_type = kwargs.pop("model_type", self.model_type)
        if (model_type, is_causal, is_encoder_decoder) != (self.model_type, True, True):
            raise ValueError(
                f"model_type, is_causal, is_encoder_decoder: got {model_type!r}, {is_causal} and "
                f"{is_encoder_decoder}, but an encoder-decoder with its causal decoder is "
                f"{self.model_type!r}, True and True; leave them out"
            )
        if self.encoder_layers < 1:
            raise ValueError(f"encoder_layers: got {encoder_layers}, expected at least 1")
        super().__init__(
            attention=attention,
            attention_options=attention_options,
            num_hidden_layers=num_hidden_layers,
            tie_word_embeddings=tie_word_embeddings,
            pad_token_id=pad_token_id,
            **kwargs,
        )
        self.is_encoder_decoder = True
        self.base_model_tp_plan = None  # its names are those of a single stack
        self.encoder_config()  # raises for sizes that do not fit

    def encoder_config(self) -> AntiphaseConfig:
        """Return the configuration of the encoder, a bidirectional stack."""
        return self._part(
            attention=self.encoder_attention,
            attention_options=self.encoder_attention_options,
            num_hidden_layers=self.encoder_layers,
        )

    def cross_config(self) -> AntiphaseConfig:
        """Return a configuration whose attention layers are those of the cross-attention."""
        return self._part(
            attention=self.cross_attention,
            attention_options=self.cross_attention_options,
            position="none",
        )

    def _part(self, **changes: Any) -> AntiphaseConfig:
        fields = {name: getattr(self, name, None) for name in AntiphaseConfig.own_fields()}
        fields |= {"is_causal": False, "sliding_window": None, "layer_types": None}
        part = AntiphaseConfig(**{**fields, **changes})
        part._attn_implementation = getattr(self, "_attn_implementation_internal", None)
        return part

    def cross_attention_layer(self, layer: int) -> Attention:
        """Return a new cross-attention layer.

        Args:
            layer: index of the decoder's block, from 0.
        """
        return self.cross_config().attention_layer(layer)

    def attention_surplus(self) -> int:
        """Return how many parameters a decoder block's attention has more than standard ones."""
        return super().attention_surplus() + self.cross_config().attention_surplus()


def transformer_2017(
    size: str = "base", attention: str = "standard", **changes: Any
) -> AntiphaseSeq2SeqConfig:
    """Return the Transformer of 2017 (arXiv 1706.03762), perhaps with another mechanism.

    Sinusoidal positions, norm(x + f(x)) with LayerNorm, ReLU layers of width 4 D with biases,
    projections of attention without, dropout of 0.1 (big: 0.3), one matrix of embeddings for
    encoder, decoder and head, which is multiplied by sqrt(D) where tokens are embedded. Weights
    start with standard deviation D^-0.5, so that embedded tokens and logits have an RMS of 1.

    Args:
        size: "nano", "base" or "big".
        attention: mechanism of the decoder; also of encoder and cross-attention, unless
            `encoder_attention` and `cross_attention` name others. `delta`, `gru` and `lstm` need
            both of them, `dint` the latter.
        **changes: any field of `AntiphaseSeq2SeqConfig`.

    Raises:
        ValueError: no such size, mechanism or field; says what is allowed.
    """
    check_choice("size", size, TRANSFORMER_SIZES)
    fields: dict[str, Any] = {
        "position": "sinusoidal",
        "norm": "layer",
        "norm_position": "post",
        "feed_forward": "relu",
        "mlp_bias": True,
        "residual_dropout": 0.1,
        "scale_embedding": True,
        "initialisation": "published",
        "vocab_size": _VOCABULARIES[size],
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **TRANSFORMER_SIZES[size],
        **changes,
    }
    fields.setdefault("initializer_range", fields["hidden_size"] ** -0.5)
    return AntiphaseSeq2SeqConfig(attention=attention, **fields)
