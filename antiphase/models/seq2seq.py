"""The encoder-decoder: a bidirectional stack, and a causal one that attends to its output.

    encoder   AntiphaseModel, is_causal=False
    decoder   AntiphaseModel whose blocks have cross-attention after self-attention

Self-attention caches keys and values of the decoder's tokens, which grow by one with each token;
cross-attention those of the encoder's output, which are computed once (`context.py`).
"""

from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.generic import ModelOutput, can_return_tuple
from transformers.utils.output_capturing import OutputRecorder

from antiphase.attention import mechanism
from antiphase.attention.projections import apply_linear
from antiphase.models.context import encoder_context
from antiphase.models.growing_cache import with_room
from antiphase.models.layers import Block
from antiphase.models.modeling import AntiphaseModel, AntiphasePreTrainedModel
from antiphase.models.seq2seq_config import AntiphaseSeq2SeqConfig


def shift_right(labels: Tensor, start: int | None, pad: int | None) -> Tensor:
    """Return the decoder's input: each token is predicted from those before it.

    Args:
        labels: [B, T]; -100 where there is none.
        start: token in place of the first.
        pad: token in place of -100.

    Raises:
        ValueError: a token is not known.
    """
    if start is None or pad is None:
        raise ValueError(
            f"decoder_start_token_id, pad_token_id: got {start} and {pad}, but labels are shifted "
            "to decoder inputs with them; set both in the configuration, or pass decoder_input_ids"
        )
    shifted = labels.roll(1, dims=-1)
    shifted[..., 0] = start
    return shifted.masked_fill(shifted == -100, pad)


class AntiphaseSeq2SeqPreTrainedModel(AntiphasePreTrainedModel):
    """What the models of an encoder-decoder share."""

    config_class = AntiphaseSeq2SeqConfig
    _can_compile_fullgraph = False  # that is for static caches


class AntiphaseDecoder(AntiphaseModel):
    """The decoder's stack, whose blocks have cross-attention."""

    config_class = AntiphaseSeq2SeqConfig
    _can_record_outputs = {  # noqa: RUF012
        **AntiphaseModel._can_record_outputs,
        "cross_attentions": OutputRecorder(Block, index=2),
    }


class AntiphaseSeq2SeqModel(AntiphaseSeq2SeqPreTrainedModel):
    """Encoder and decoder: tokens to the decoder's hidden states.

    Args:
        config: of the model.
    """

    _tied_weights_keys = {  # noqa: RUF012
        "encoder.embed_tokens.weight": "decoder.embed_tokens.weight"
    }

    def __init__(self, config: AntiphaseSeq2SeqConfig) -> None:
        super().__init__(config)
        self.encoder = AntiphaseModel(config.encoder_config())
        self.decoder = AntiphaseDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the decoder's embeddings, which are the encoder's, too, if they are tied."""
        return self.decoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the embeddings of encoder and decoder.

        Args:
            value: the new embeddings.

        Raises:
            ValueError: each has its own.
        """
        if not self.config.tie_word_embeddings:
            raise ValueError(
                "tie_word_embeddings: False, so encoder and decoder have embeddings of their own; "
                "set those of get_encoder() and get_decoder()"
            )
        self.encoder.embed_tokens = self.decoder.embed_tokens = value

    def new_cache(self) -> EncoderDecoderCache:
        """Return an empty cache, with room for the state that a mechanism may keep."""
        cross = DynamicCache(config=self.config.cross_config())
        return EncoderDecoderCache(with_room(DynamicCache(config=self.config)), cross)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: ModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """Return the decoder's hidden states.

        Args:
            input_ids: the encoder's tokens [B, S]; or give `inputs_embeds` or `encoder_outputs`.
            attention_mask: their padding mask [B, S]; the decoder's cross-attention has it, too.
            decoder_input_ids: the decoder's tokens [B, T]; or give `decoder_inputs_embeds`. With a
                cache, those that continue it.
            decoder_attention_mask: their padding mask [B, Tk], with those that are cached.
            encoder_outputs: what the encoder returned in an earlier call.
            past_key_values: of an earlier call, or `new_cache()`.
            inputs_embeds: the encoder's embedded tokens [B, S, D].
            decoder_inputs_embeds: the decoder's embedded tokens [B, T, D].
            use_cache: return the cache; the configuration's by default.
            **kwargs: `output_hidden_states`, `output_attentions` and `return_dict`.

        Returns:
            `last_hidden_state` [B, T, D], `encoder_last_hidden_state` [B, S, D], and the optional
            outputs that were requested.

        Raises:
            ValueError: inputs are missing, or the cache is not one of an encoder-decoder.
        """
        config = self.config
        collect = {
            name: kwargs.pop(name, getattr(config, name))
            for name in ("output_attentions", "output_hidden_states")
        }
        encoded: Any = encoder_outputs
        if encoded is None:
            if input_ids is None and inputs_embeds is None:
                raise ValueError("input_ids, inputs_embeds, encoder_outputs: give one of them")
            encoded = self.encoder(
                input_ids, attention_mask, inputs_embeds=inputs_embeds, **collect
            )
        elif not isinstance(encoded, ModelOutput):
            encoded = BaseModelOutput(*encoded)
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError("decoder_input_ids, decoder_inputs_embeds, labels: give one of them")
        if past_key_values is None and (config.use_cache if use_cache is None else use_cache):
            past_key_values = self.new_cache()
        own, cross = _caches(past_key_values)
        decoded = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            past_key_values=own,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=own is not None,
            context=encoder_context(encoded.last_hidden_state, attention_mask, cross),
            **collect,
        )
        if past_key_values is not None:  # as transformers' models mark that the keys are written
            past_key_values.is_updated = dict.fromkeys(range(config.num_hidden_layers), True)
        return Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            past_key_values=past_key_values,
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.get("cross_attentions"),
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )


def _caches(both: Cache | None) -> tuple[Cache | None, Cache | None]:
    """Return the caches of self-attention and of cross-attention."""
    if both is None:
        return None, None
    if not isinstance(both, EncoderDecoderCache) or both.is_compileable:
        raise ValueError(
            f"past_key_values: got {both}, expected an EncoderDecoderCache of two dynamic caches, "
            "such as new_cache() of the model; static ones are not supported"
        )
    return both.self_attention_cache, both.cross_attention_cache


class AntiphaseForConditionalGeneration(AntiphaseSeq2SeqPreTrainedModel, GenerationMixin):
    """An encoder-decoder with a head over the vocabulary: translation, summaries, copies.

    Args:
        config: of the model.
    """

    _tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: AntiphaseSeq2SeqConfig) -> None:
        super().__init__(config)
        self.model = AntiphaseSeq2SeqModel(config)
        # A running state cannot drop tokens again: no assisted decoding or prompt lookup.
        self._is_stateful = mechanism(config.attention).running_state
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Return the decoder's input for labels [B, T]; transformers' collators call it."""
        return shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        name = generation_config.cache_implementation
        if name not in (None, "dynamic"):
            raise ValueError(
                f"cache_implementation: got {name!r}, but an encoder-decoder has only a dynamic "
                "cache; leave it out"
            )
        given = model_kwargs.get("past_key_values")
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        if given is None and model_kwargs.get("past_key_values") is not None:
            model_kwargs["past_key_values"] = self.model.new_cache()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: ModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Return the logits, and with `labels` the loss.

        Args:
            input_ids: the encoder's tokens [B, S]; or give `inputs_embeds` or `encoder_outputs`.
            attention_mask: their padding mask [B, S].
            decoder_input_ids: the decoder's tokens [B, T]; by default `labels`, shifted right.
            decoder_attention_mask: their padding mask [B, Tk].
            encoder_outputs: what the encoder returned in an earlier call.
            past_key_values: of an earlier call.
            inputs_embeds: the encoder's embedded tokens [B, S, D].
            decoder_inputs_embeds: the decoder's embedded tokens [B, T, D].
            labels: [B, T], what the decoder has to predict, not shifted; -100 is ignored.
            use_cache: return the cache; by default the configuration's, and not with labels.
            logits_to_keep: only the last so many positions, or positions [n]; 0 for all.
            **kwargs: `output_hidden_states`, `output_attentions`, `return_dict`, and what
                transformers' loss function takes.

        Returns:
            `logits` [B, T, vocabulary], `loss`, and the optional outputs that were requested.
        """
        if labels is not None:
            use_cache = bool(use_cache)
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        x = outputs.last_hidden_state
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = apply_linear(self.lm_head, x[:, keep, :])
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits,
                labels=labels,
                shift_labels=labels,  # the inputs are shifted, not the labels
                vocab_size=self.config.vocab_size,
                **kwargs,
            )
        return Seq2SeqLMOutput(loss=loss, logits=logits, **_beside_states(outputs))


def _beside_states(outputs: Seq2SeqModelOutput) -> dict[str, Any]:
    return {name: value for name, value in outputs.items() if name != "last_hidden_state"}
