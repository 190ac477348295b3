"""Antiphase: noise-cancelling (differential) attention for PyTorch.

Names are imported on first use, so that `import antiphase` does not load PyTorch.
"""

from antiphase.attention.registry import CLASSES
from antiphase.lazy_imports import lazy_names
from antiphase.registrations import register

__version__ = "0.1.0"

_PUBLIC = {  # every public name, by the module that defines it
    "attention": CLASSES.values(),
    "models": [
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
    ],
    "models.accelerate": ["accelerate"],
    "ops": ["attention_maps", "backend_for", "diff_attention"],
    "pretrained": ["DexConfig", "UnchainedModel", "fold", "to_differential", "unchain"],
    "tasks": ["Language", "task"],
    "training": ["Recipe", "load_recipe", "resume", "train"],
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = ["__version__", *_MODULES]
__getattr__ = lazy_names(__name__, _MODULES)
register()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
