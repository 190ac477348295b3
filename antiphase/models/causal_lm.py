"""The causal language model, and a classifier that reads the last token."""

from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from antiphase.attention import mechanism
from antiphase.attention.projections import apply_linear
from antiphase.models.config import AntiphaseConfig
from antiphase.models.growing_cache import with_room
from antiphase.models.modeling import ONLY_OPS, AntiphaseModel, AntiphasePreTrainedModel
from antiphase.models.serving import served_heads


class AntiphaseForCausalLM(AntiphasePreTrainedModel, GenerationMixin):
    """A causal language model: the stack of blocks and a head over the vocabulary.

    Args:
        config: of the model.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    _tp_plan = {"lm_head": "colwise_gather_output"}  # noqa: RUF012
    _pp_plan = {"lm_head": (["hidden_states"], ["logits"])}  # noqa: RUF012

    def __init__(self, config: AntiphaseConfig) -> None:
        super().__init__(config)
        if not config.is_causal or config.is_encoder_decoder:
            raise ValueError(
                f"is_causal, is_encoder_decoder: got {config.is_causal} and "
                f"{config.is_encoder_decoder}, but a causal language model is causal and has no "
                "encoder; use AntiphaseForMaskedLM or AntiphaseForConditionalGeneration for these"
            )
        self.model = AntiphaseModel(config)
        # A running state cannot drop tokens again: no assisted decoding or prompt lookup.
        self._is_stateful = mechanism(config.attention).running_state
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        given = model_kwargs.get("past_key_values")
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        cache = model_kwargs.get("past_key_values")
        if given is None and isinstance(cache, DynamicCache) and not cache.offloading:
            with_room(cache)

    def generate_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Generate by transformers' continuous batching, whose arguments these are.

        It needs an attention function that knows its paged cache. A model on one of the ops uses
        "sdpa" for the time of the call.

        Raises:
            ValueError: the mechanism does not have the heads that the paged cache is made for.
        """
        config = self.config
        _, kv_heads, width = served_heads(config)
        if (kv_heads, width) != (config.num_key_value_heads, config.head_dim):
            raise ValueError(
                f"generate_batch: {config.attention} has {kv_heads} key/value heads of width "
                f"{width} in one call of standard attention, but the paged cache is made for "
                f"{config.num_key_value_heads} of width {config.head_dim}; use generate"
            )
        before = config._attn_implementation
        if before in ONLY_OPS:
            self.set_attn_implementation("sdpa")
        try:
            return super().generate_batch(*args, **kwargs)
        finally:
            self.set_attn_implementation(before)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return the logits, and with `labels` the loss.

        Args:
            input_ids: tokens [B, T]; or give `inputs_embeds`.
            attention_mask: padding mask [B, Tk], or a mask [B, 1, T, Tk] (True: attend).
            position_ids: [B | 1, T]; by default they continue the cache. Positions that restart
                mark packed sequences.
            past_key_values: the KV cache.
            inputs_embeds: embedded tokens [B, T, D] in place of `input_ids`.
            labels: [B, T], the tokens themselves (they are shifted here); -100 is ignored.
            use_cache: return the KV cache; the configuration's by default.
            logits_to_keep: only the last so many positions, or positions [n]; 0 for all.
            **kwargs: `output_hidden_states`, `output_attentions`, `return_dict`, and what
                transformers' loss function takes.

        Returns:
            `logits` [B, T, vocabulary], `loss`, and the optional outputs that were requested.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        x = outputs.last_hidden_state
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = apply_linear(self.lm_head, x[:, keep, :])
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs
            )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class AntiphaseForSequenceClassification(
    GenericForSequenceClassification,
    AntiphasePreTrainedModel,
):
    """A classifier of sequences: the stack of blocks and a head on the last token of each.

    Padding behind the last token is found by `pad_token_id`.
    """
