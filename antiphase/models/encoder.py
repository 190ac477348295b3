"""Models that read every token, best with `is_causal=False`: a bidirectional encoder.

encoder   AntiphaseModel(AntiphaseConfig(is_causal=False)), from `modeling.py`
heads     on every token: masked language modelling, classes, the span of an answer
"""

from typing import Any

from torch import Tensor, nn
from transformers.modeling_layers import GenericForQuestionAnswering, GenericForTokenClassification
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from antiphase.attention.projections import apply_linear
from antiphase.models.config import AntiphaseConfig
from antiphase.models.modeling import AntiphaseModel, AntiphasePreTrainedModel


class AntiphaseForMaskedLM(AntiphasePreTrainedModel):
    """A masked language model: a bidirectional encoder and a head over the vocabulary.

    Args:
        config: with `is_causal=False`.

    Raises:
        ValueError: the configuration is that of a causal model.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: AntiphaseConfig) -> None:
        super().__init__(config)
        if config.is_causal:
            raise ValueError(
                "is_causal: got True, but a masked language model also reads the tokens behind a "
                "mask; pass is_causal=False"
            )
        self.model = AntiphaseModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Return the logits of every token, and with `labels` the loss.

        Args:
            input_ids: tokens [B, T]; or give `inputs_embeds`.
            attention_mask: padding mask [B, T], or a mask [B, 1, T, T] (True: attend).
            position_ids: [B | 1, T]; by default they count the tokens. Positions that restart mark
                packed sequences.
            inputs_embeds: embedded tokens [B, T, D] in place of `input_ids`.
            labels: [B, T], the tokens that were masked; -100 is ignored.
            **kwargs: `output_hidden_states`, `output_attentions`, `return_dict`, and what
                transformers' loss function takes.

        Returns:
            `logits` [B, T, vocabulary], `loss`, and the optional outputs that were requested.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = apply_linear(self.lm_head, outputs.last_hidden_state)
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs
            )
        return MaskedLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class AntiphaseForTokenClassification(GenericForTokenClassification, AntiphasePreTrainedModel):
    """A classifier of tokens: the stack of blocks and a head on every token."""


class AntiphaseForQuestionAnswering(GenericForQuestionAnswering, AntiphasePreTrainedModel):
    """Extractive question answering: for every token, whether the answer starts or ends there."""

    base_model_prefix = "model"  # so that the body of a language model is loaded
