"""Hugging Face models with any mechanism; importing this registers them with the Auto classes."""

from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import antiphase.models.attention_interface  # noqa: F401  (registers attn_implementation="antiphase")
from antiphase.models.causal_lm import AntiphaseForCausalLM, AntiphaseForSequenceClassification
from antiphase.models.config import AntiphaseConfig
from antiphase.models.encoder import (
    AntiphaseForMaskedLM,
    AntiphaseForQuestionAnswering,
    AntiphaseForTokenClassification,
)
from antiphase.models.modeling import AntiphaseModel
from antiphase.models.presets import PRESETS, preset
from antiphase.models.seq2seq import AntiphaseForConditionalGeneration, AntiphaseSeq2SeqModel
from antiphase.models.seq2seq_config import AntiphaseSeq2SeqConfig, transformer_2017

__all__ = [
    "PRESETS",
    "AntiphaseConfig",
    "AntiphaseForCausalLM",
    "AntiphaseForConditionalGeneration",
    "AntiphaseForMaskedLM",
    "AntiphaseForQuestionAnswering",
    "AntiphaseForSequenceClassification",
    "AntiphaseForTokenClassification",
    "AntiphaseModel",
    "AntiphaseSeq2SeqConfig",
    "AntiphaseSeq2SeqModel",
    "preset",
    "transformer_2017",
]

_MODELS: dict[type[AntiphaseConfig], dict[Any, Any]] = {
    AntiphaseConfig: {
        AutoModel: AntiphaseModel,
        AutoModelForCausalLM: AntiphaseForCausalLM,
        AutoModelForMaskedLM: AntiphaseForMaskedLM,
        AutoModelForQuestionAnswering: AntiphaseForQuestionAnswering,
        AutoModelForSequenceClassification: AntiphaseForSequenceClassification,
        AutoModelForTokenClassification: AntiphaseForTokenClassification,
    },
    AntiphaseSeq2SeqConfig: {
        AutoModel: AntiphaseSeq2SeqModel,
        AutoModelForSeq2SeqLM: AntiphaseForConditionalGeneration,
    },
}
for _config, _models in _MODELS.items():
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    for _auto, _model in _models.items():
        _auto.register(_config, _model, exist_ok=True)
