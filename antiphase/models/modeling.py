"""Antiphase models for Hugging Face: base model, causal language model, task heads."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_layers import (
    GenericForQuestionAnswering,
    GenericForSequenceClassification,
    GenericForTokenClassification,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from antiphase.attention import Attention, mechanism
from antiphase.attention.parts import Float32Parameters
from antiphase.attention.projections import apply_linear
from antiphase.attention.recurrence import init_recurrence
from antiphase.models.cache import LayerCache, forget_constants
from antiphase.models.config import AntiphaseConfig
from antiphase.models.growing_cache import with_room
from antiphase.models.initialisation import scaled_start
from antiphase.models.layers import Block, RotaryPositions, norm_of, sinusoidal
from antiphase.models.masks import (
    BACKENDS,
    EAGER,
    function_masks,
    ops_masks,
    packed_documents,
    without_full_padding_mask,
)
from antiphase.models.model_card import MODEL_TAGS, write_card
from antiphase.models.serving import served_heads
from antiphase.ops.documents import document_ranges

# What only the ops have. "sdpa" names an attention function of transformers as well.
ONLY_OPS = tuple(name for name in BACKENDS if name != "sdpa")


def is_computed_by_functions(config: AntiphaseConfig) -> bool:
    """Tell whether one call of standard attention computes the mechanism of a configuration."""
    with torch.device("meta"):
        return config.attention_layer().function_head_counts is not None


class AntiphasePreTrainedModel(PreTrainedModel):
    """What all Antiphase models share: loading, saving, initialisation, backends, outputs."""

    config_class = AntiphaseConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _can_compile_fullgraph = True
    # By the attention functions of transformers; `get_correct_attn_implementation` raises for
    # mechanisms that one call of them does not compute.
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True
    _supports_attention_backend = True
    # What `output_hidden_states` and `output_attentions` collect: a block's two results.
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
        self.norm = norm_of(config)
        if config.position == "rope":
            self.rotary = RotaryPositions(config, self.attention_layers[0].rotary_widths)
        self.mechanism = mechanism(config.attention)
        self.computed_by_functions = is_computed_by_functions(config)
        self.gradient_checkpointing = False
        # transformers casts weights while it loads them, past `Float32Parameters._apply`.
        self._keep_in_fp32_modules_strict = {
            f"self_attn.{name}"
            for name, part in self.attention_layers[0].named_modules()
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
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
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
        rotary = {}
        if config.position == "rope":
            rotary = self.rotary(x, position_ids)
        elif config.position == "sinusoidal":
            x = x + sinusoidal(position_ids, config.hidden_size, x.dtype)
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
                mask=mask,
                rotary=rotary,
                cache=cache,
                backend=backend if by_function or backend in BACKENDS else "auto",
                return_map=return_map,
                function_arguments=function_arguments,
            )
            # A server replaces the blocks that another process computes by ones that return x.
            x = out[0] if isinstance(out, tuple) else out
        return BaseModelOutputWithPast(
            last_hidden_state=self.norm(x),
            past_key_values=past_key_values if use_cache else None,
        )

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
        if cache is not None and cache.is_compileable and not self.mechanism.static_cache:
            raise ValueError(
                f"past_key_values: {self.mechanism.name} does not work with a static cache; use a "
                "dynamic one (cache_implementation='dynamic')"
            )


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


class AntiphaseForTokenClassification(GenericForTokenClassification, AntiphasePreTrainedModel):
    """A classifier of tokens: the stack of blocks and a head on every token."""


class AntiphaseForQuestionAnswering(GenericForQuestionAnswering, AntiphasePreTrainedModel):
    """Extractive question answering: for every token, whether the answer starts or ends there."""

    base_model_prefix = "model"  # so that the body of a language model is loaded
