"""Antiphase models for Hugging Face: what all share, and the stack of blocks."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from antiphase.attention import Attention, mechanism
from antiphase.attention.parts import Float32Parameters
from antiphase.attention.recurrence import init_recurrence
from antiphase.models.cache import LayerCache, forget_constants
from antiphase.models.config import AntiphaseConfig
from antiphase.models.context import Context
from antiphase.models.growing_cache import with_room
from antiphase.models.initialisation import scaled_start
from antiphase.models.layers import Block, RotaryPositions, norm_of, sinusoidal
from antiphase.models.masks import (
    BACKENDS,
    EAGER,
    function_masks,
    ops_masks,
    packed_documents,
    positions_of_tokens,
    without_full_padding_mask,
)
from antiphase.models.model_card import MODEL_TAGS, write_card
from antiphase.ops.documents import document_ranges

# What only the ops have. "sdpa" names an attention function of transformers as well.
ONLY_OPS = tuple(name for name in BACKENDS if name != "sdpa")


def is_computed_by_functions(config: AntiphaseConfig) -> bool:
    """Tell whether one call of standard attention computes the mechanism of a configuration."""
    with torch.device("meta"):
        return config.attention_layer().function_head_counts is not None


class AntiphasePreTrainedModel(PreTrainedModel):
    """What all Antiphase models share: loading, saving, initialisation, backends, outputs."""

    config_class: type[AntiphaseConfig] = AntiphaseConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _can_compile_fullgraph = True
    # By the attention functions of transformers; `get_correct_attn_implementation` raises for
    # mechanisms that one call of them does not compute.
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True
    _supports_attention_backend = True
    # What `output_hidden_states` and `output_attentions` collect: a block's results.
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": OutputRecorder(Block, index=0),
        "attentions": OutputRecorder(Block, index=1),
    }
    model_tags = MODEL_TAGS

    def get_correct_attn_implementation(
        self, requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        """Return the `attn_implementation` of the configuration.

        Args:
            requested_attention: a backend of the ops, or "eager", transformers' name for
                "reference"; None for "auto". Or the name of an attention function that is
                registered with transformers.
            is_init_check: whether the model is being constructed, for transformers' checks.

        Raises:
            ValueError: there is no such backend or function, or the function does not compute the
                mechanism.
        """
        name = "auto" if requested_attention is None else requested_attention
        if name in (EAGER, *BACKENDS):
            return name
        functions = ALL_ATTENTION_FUNCTIONS.valid_keys()
        if name not in functions:
            raise ValueError(
                f'Specified `attn_implementation="{name}"` is not supported: allowed are '
                f"{', '.join((*BACKENDS, EAGER))}, and the attention functions of transformers: "
                f"{', '.join(functions)}"
            )
        if not is_computed_by_functions(self.config):
            raise ValueError(
                f"attn_implementation: got {name!r}, but {self.config.attention} is not computed "
                f"by one call of standard attention; allowed are {', '.join(BACKENDS)}"
            )
        return str(super().get_correct_attn_implementation(name, is_init_check))

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # N(0, initializer_range), zero biases, norms of ones
        if isinstance(module, Float32Parameters):
            module.init_parameters()  # lambdas, gains and logits have initial values of their own
        if isinstance(module, nn.RNNBase):
            init_recurrence(module)
        if isinstance(module, Block) and self.config.initialisation == "scaled":
            scaled_start(module, self.config)

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # For classes outside transformers, the parent skips modules without parameters of their
        # own, hence every Block. Its reason does not hold here: `_init_weights` only calls
        # functions of `nn.init`, which transformers guards so that loaded parameters are kept.
        super()._initialize_weights(module)

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Return optimiser groups: matrices decay; lambdas, gains, embeddings and biases do not.

        Args:
            weight_decay: of the matrices.
        """
        embeddings = {id(m.weight) for m in self.modules() if isinstance(m, nn.Embedding)}
        decayed: list[Tensor] = []
        kept: list[Tensor] = []
        for parameter in self.parameters():
            if parameter.requires_grad:
                matrix = parameter.dim() >= 2 and id(parameter) not in embeddings
                (decayed if matrix else kept).append(parameter)
        return [
            {"params": decayed, "weight_decay": weight_decay},
            {"params": kept, "weight_decay": 0.0},
        ]

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Save as any Hugging Face model, with a model card if the folder has none."""
        result = super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            write_card(self, save_directory)
        return result

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Do nothing: `AntiphaseConfig.save_pretrained` writes the code and `auto_map`.

        Loading with `trust_remote_code=True` calls this. transformers' own method would make
        `save_pretrained` copy `modeling.py` alone.
        """

    def _upload_modified_files(self, working_dir: Any, *args: Any, **kwargs: Any) -> Any:
        write_card(self, working_dir)  # in place of the generic one that `push_to_hub` has written
        return super()._upload_modified_files(working_dir, *args, **kwargs)


def _takes_documents(function: str, arguments: dict[str, Any]) -> bool:
    """Tell whether the mask of an attention function contains the documents of packed sequences.

    A server's function has no mask, and continuous batching (with its `cache`) makes its own.
    """
    return function in ALL_MASK_ATTENTION_FUNCTIONS._global_mapping and "cache" not in arguments


class AntiphaseModel(AntiphasePreTrainedModel):
    """The stack of blocks: tokens to hidden states.

    It is a causal decoder, or with `is_causal=False` a bidirectional encoder.

    Args:
        config: of the model.
    """

    def __init__(self, config: AntiphaseConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        width = config.feed_forward_width
        self.layers = nn.ModuleList(
            Block(config, layer, width) for layer in range(config.num_hidden_layers)
        )
        self.layer_types = [config.layer_type(i) for i in range(config.num_hidden_layers)]
        self.dropout = nn.Dropout(config.residual_dropout)
        # With post-norm, the last block has normalised what it returns.
        self.norm = nn.Identity() if config.norm_position == "post" else norm_of(config)
        if config.position == "rope":
            self.rotary = RotaryPositions(config, self.attention_layers[0].rotary_widths)
        self.mechanism = mechanism(config.attention)
        self.computed_by_functions = is_computed_by_functions(config)
        self.gradient_checkpointing = False
        # transformers casts weights while it loads them, past `Float32Parameters._apply`.
        self._keep_in_fp32_modules_strict = {
            name
            for name, part in self.layers[0].named_modules()
            if isinstance(part, Float32Parameters) and part.state_dict()
        }
        self.post_init()

    # `use_cache` from the configuration; hidden states, attentions and tuples on request.
    @merge_with_config_defaults  # type: ignore[untyped-decorator]
    @capture_outputs  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        context: Context | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Return the hidden states.

        Args:
            input_ids: tokens [B, T]; or give `inputs_embeds`.
            attention_mask: padding mask [B, Tk], or a mask [B, 1, T, Tk] (True: attend).
            position_ids: [B | 1, T]; by default they continue the cache. Positions that do not
                continue the one before mark packed sequences: no document attends to another.
            past_key_values: the KV cache.
            inputs_embeds: embedded tokens [B, T, D] in place of `input_ids`.
            use_cache: return the KV cache; the configuration's by default.
            context: what the blocks' cross-attention reads, in a decoder that has an encoder.
            **kwargs: `output_hidden_states`, `output_attentions` and `return_dict`. The attentions
                are the maps that are applied to V: for a differential layer the differences. And
                the boundaries of packed sequences that collators give beside or in place of
                positions: `cu_seq_lens_q` or `seq_idx`.

        Returns:
            `last_hidden_state` [B, T, D], and the optional outputs that were requested.
        """
        config = self.config
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("input_ids, inputs_embeds: give exactly one of them")
        x = self._embed(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=config)
            if not torch.compiler.is_compiling():
                past_key_values = with_room(past_key_values)
        self._check_cache(past_key_values)
        attention_mask = without_full_padding_mask(attention_mask)
        return_map = bool(kwargs.get("output_attentions", config.output_attentions))
        backend = (
            "reference" if config._attn_implementation == EAGER else config._attn_implementation
        )
        by_function = self._calls_function(backend, return_map)
        documents = None
        if not by_function or _takes_documents(backend, kwargs):
            documents = packed_documents(x, attention_mask, position_ids, past_key_values, kwargs)
        masks = (function_masks if by_function else ops_masks)(
            config, set(self.layer_types), x, attention_mask, past_key_values, documents
        )
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        if position_ids is None:
            position_ids = (torch.arange(x.shape[1], device=x.device) + past)[None]
            if documents is not None:  # each document counts from 0
                position_ids = position_ids - document_ranges(documents, x.shape[1])[..., 0]
            elif config.position == "sinusoidal":  # RoPE has only distances
                position_ids = positions_of_tokens(attention_mask, position_ids)
        rotary = {}
        if config.position == "rope":
            rotary = self.rotary(x, position_ids)
        elif config.position == "sinusoidal":
            x = x + sinusoidal(position_ids, config.hidden_size, x.dtype)
        x = self.dropout(x)
        function_arguments = {**kwargs, "position_ids": position_ids} if by_function else None
        static = past_key_values is not None and past_key_values.is_compileable
        eager = not static and not torch.compiler.is_compiling()
        decodes = eager and past > 0 and not torch.is_grad_enabled()
        if eager and past_key_values is not None and not decodes:
            forget_constants(past_key_values)
        for i, block in enumerate(self.layers):
            cache, mask = None, masks[self.layer_types[i]]
            if past_key_values is not None:
                # The causal flag alone masks the prefill of a static cache.
                prefill = static and mask.mask is None
                cache = LayerCache(past_key_values, i, static_prefill=prefill, decodes=decodes)
            out = block(
                x,
                None if context is None else context.states,
                mask=mask,
                rotary=rotary,
                cache=cache,
                backend=backend if by_function or backend in BACKENDS else "auto",
                return_map=return_map,
                function_arguments=function_arguments,
                **({} if context is None else context.of_layer(i, decodes)),
            )
            # A server replaces the blocks that another process computes by ones that return x.
            x = out[0] if isinstance(out, tuple) else out
        return BaseModelOutputWithPast(
            last_hidden_state=self.norm(x),
            past_key_values=past_key_values if use_cache else None,
        )

    def _embed(self, input_ids: Tensor | None) -> Tensor:
        x: Tensor = self.embed_tokens(input_ids)
        return x * self.config.hidden_size**0.5 if self.config.scale_embedding else x

    def _calls_function(self, backend: str, return_map: bool) -> bool:
        """Tell whether the layers call an attention function of transformers instead of an op.

        Maps come from the ops, and so do soft-capped scores and dropout under the name "sdpa".
        """
        if backend in ONLY_OPS or not self.computed_by_functions or return_map:
            return False
        dropout = self.config.attention_dropout if self.training else 0.0
        return backend != "sdpa" or not (self.config.attn_logit_softcapping or dropout)

    @property
    def attention_layers(self) -> list[Attention]:
        """Return the mechanism of every block, first to last."""
        return [block.self_attn for block in self.layers]  # type: ignore[misc]

    def _check_cache(self, cache: Cache | None) -> None:
        if cache is not None and not self.config.is_causal:
            raise ValueError(
                "past_key_values, use_cache: a bidirectional model reads all tokens at once and "
                "has no cache; leave them out"
            )
        if cache is not None and cache.is_compileable and not self.mechanism.static_cache:
            raise ValueError(
                f"past_key_values: {self.mechanism.name} does not work with a static cache; use a "
                "dynamic one (cache_implementation='dynamic')"
            )
