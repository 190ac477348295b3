"""Register these models with vLLM, which runs `register` in each of its processes.

`pyproject.toml` names it in the entry point group `vllm.general_plugins`, so it is enough that this
package is installed beside vLLM. The model itself runs unchanged, by vLLM's Transformers backend.
"""

from typing import Any

import torch

from antiphase.attention import MECHANISMS
from antiphase.models.config import AntiphaseConfig

TRANSFORMERS_BACKEND = "vllm.model_executor.models.transformers:TransformersForCausalLM"


def served_heads(config: AntiphaseConfig) -> tuple[int, int, int]:
    """Return the numbers of query heads and key/value heads, and their width, as a server counts.

    A server sizes one standard attention per layer: V2 is one of twice the query heads.

    Args:
        config: of the model.

    Raises:
        ValueError: one call of standard attention does not compute the mechanism.
    """
    with torch.device("meta"):
        layer = config.attention_layer()
    if layer.function_head_counts is None:
        raise ValueError(
            f"attention: {config.attention} is not computed by one call of standard attention, so "
            f"a server's attention kernels do not fit; allowed are {', '.join(served_mechanisms())}"
        )
    return *layer.function_head_counts, layer.head_dim


def served_mechanisms() -> list[str]:
    """Return the names of the mechanisms that a server's attention kernels compute."""
    from antiphase.attention.base import Attention

    base = Attention.function_heads
    return [name for name, kind in MECHANISMS.items() if kind.function_heads is not base]


def register() -> None:
    """Register the model class and the number of its heads with vLLM."""
    from vllm import ModelRegistry
    from vllm.transformers_utils.model_arch_config_convertor import (
        MODEL_ARCH_CONFIG_CONVERTORS,
        ModelArchConfigConvertorBase,
    )

    import antiphase.models  # noqa: F401 (registers the Auto classes)

    class Convertor(ModelArchConfigConvertorBase):  # type: ignore[misc]
        hf_text_config: Any

        def get_total_num_attention_heads(self) -> int:
            return served_heads(self.hf_text_config)[0]

        def get_total_num_kv_heads(self) -> int:
            return served_heads(self.hf_text_config)[1]

        def get_head_size(self) -> int:
            return served_heads(self.hf_text_config)[2]

    MODEL_ARCH_CONFIG_CONVERTORS[AntiphaseConfig.model_type] = Convertor
    ModelRegistry.register_model("AntiphaseForCausalLM", TRANSFORMERS_BACKEND)
