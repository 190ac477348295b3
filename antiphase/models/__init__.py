"""Hugging Face models with any mechanism; importing this registers them with the Auto classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from antiphase.models.config import AntiphaseConfig
from antiphase.models.modeling import (
    AntiphaseForCausalLM,
    AntiphaseForQuestionAnswering,
    AntiphaseForSequenceClassification,
    AntiphaseForTokenClassification,
    AntiphaseModel,
)
from antiphase.models.presets import PRESETS, preset

__all__ = [
    "PRESETS",
    "AntiphaseConfig",
    "AntiphaseForCausalLM",
    "AntiphaseForQuestionAnswering",
    "AntiphaseForSequenceClassification",
    "AntiphaseForTokenClassification",
    "AntiphaseModel",
    "preset",
]

AutoConfig.register("antiphase", AntiphaseConfig, exist_ok=True)
AutoModel.register(AntiphaseConfig, AntiphaseModel, exist_ok=True)
AutoModelForCausalLM.register(AntiphaseConfig, AntiphaseForCausalLM, exist_ok=True)
AutoModelForQuestionAnswering.register(
    AntiphaseConfig, AntiphaseForQuestionAnswering, exist_ok=True
)
AutoModelForSequenceClassification.register(
    AntiphaseConfig, AntiphaseForSequenceClassification, exist_ok=True
)
AutoModelForTokenClassification.register(
    AntiphaseConfig, AntiphaseForTokenClassification, exist_ok=True
)
