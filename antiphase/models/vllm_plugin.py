"""Register these models with vLLM, which runs `register` in each of its processes.

`pyproject.toml` names it in the entry point group `vllm.general_plugins`, so it is enough that this
package is installed beside vLLM. The model itself runs unchanged, by vLLM's Transformers backend.
"""

from typing import Any

from antiphase.models.config import AntiphaseConfig
from antiphase.models.serving import served_heads

TRANSFORMERS_BACKEND = "vllm.model_executor.models.transformers:TransformersForCausalLM"


def register() -> None:
    """Register the model class and the number of its heads with vLLM."""
    from vllm import ModelRegistry
    from vllm.transformers_utils.model_arch_config_convertor import (
        MODEL_ARCH_CONFIG_CONVERTORS,
        ModelArchConfigConvertorBase,
    )

    import antiphase.models  # noqa: F401 (registers the Auto classes)

    class Convertor(ModelArchConfigConvertorBase):
        hf_text_config: Any

        def get_total_num_attention_heads(self) -> int:
            return served_heads(self.hf_text_config)[0]

        def get_total_num_kv_heads(self) -> int:
            return served_heads(self.hf_text_config)[1]

        def get_head_size(self) -> int:
            return served_heads(self.hf_text_config)[2]

    MODEL_ARCH_CONFIG_CONVERTORS[AntiphaseConfig.model_type] = Convertor
    ModelRegistry.register_model("AntiphaseForCausalLM", TRANSFORMERS_BACKEND)
