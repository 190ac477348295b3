"""Load this model with the package antiphase, which contains its code.

`save_pretrained` copies this file into the model's folder. transformers runs it there for
`trust_remote_code=True`, in a process that has not imported the package.
"""

try:
    from antiphase.models import (
        AntiphaseConfig,
        AntiphaseForCausalLM,
        AntiphaseForConditionalGeneration,
        AntiphaseForMaskedLM,
        AntiphaseForQuestionAnswering,
        AntiphaseForSequenceClassification,
        AntiphaseForTokenClassification,
        AntiphaseModel,
        AntiphaseSeq2SeqConfig,
        AntiphaseSeq2SeqModel,
    )
except ModuleNotFoundError as error:
    if error.name != "antiphase":
        raise
    raise ModuleNotFoundError(
        "this model needs the package antiphase, which is not installed in this environment; "
        'install it from git: pip install "antiphase @ git+https://github.com/OWNER/antiphase" '
        "(OWNER: the account that hosts the repository)",
        name="antiphase",
    ) from error

__all__ = [
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
]
