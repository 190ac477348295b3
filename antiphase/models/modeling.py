"""Antiphase models for Hugging Face: base model, causal language model, sequence classifier."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from antiphase.attention import Attention, mechanism
from antiphase.attention.parts import Float32Parameters
from antiphase.models.cache import LayerCache
from antiphase.models.config import AntiphaseConfig
from antiphase.models.layers import Block, RotaryPositions, norm_of, sinusoidal
from antiphase.models.masks import BACKENDS, visibility
from antiphase.models.model_card import MODEL_TAGS, write_card


class AntiphasePreTrainedModel(PreTrainedModel):
    """What all Antiphase models share: loading, saving, initialisation and the backend's name."""

    config_class = AntiphaseConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _can_compile_fullgraph = True
    model_tags = MODEL_TAGS

    def get_correct_attn_implementation(
        self, requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        """Return the backend of the ops; "eager" is taken for the reference."""
        name = {None: "auto", "eager": "reference"}.get(requested_attention, requested_attention)
        if name not in BACKENDS:
            raise ValueError(
                f"attn_implementation: got {name!r}, allowed are {', '.join(BACKENDS)}"
            )
        return str(name)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Float32Parameters):
            module.init_parameters()

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Return optimiser groups: matrices decay; lambdas, gains, embeddings and biases do not."""
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

    def _upload_modified_files(self, working_dir: Any, *args: Any, **kwargs: Any) -> Any:
        write_card(self, working_dir)  # `push_to_hub` has just put a generic one there
        return super()._upload_modified_files(working_dir, *args, **kwargs)


class AntiphaseModel(AntiphasePreTrainedModel):
    """The stack of blocks: tokens to hidden states."""

    def __init__(self, config: AntiphaseConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        width = config.feed_forward_width
        self.layers = nn.ModuleList(
            Block(config, layer, width) for layer in range(config.num_hidden_layers)
        )
        self.norm = norm_of(config)
        if config.position == "rope":
            self.rotary = RotaryPositions(config, config.attention_layer().rotary_widths)
        self.gradient_checkpointing = False
        self._keep_in_fp32_modules_strict = {
            f"self_attn.{name}."
            for name, part in self.attention_layers[0].named_modules()
            if isinstance(part, Float32Parameters)
        }
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        """Return the hidden states; attentions are the maps that meet V (the differences)."""
        config = self.config
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("input_ids, inputs_embeds: give exactly one of them")
        use_cache = config.use_cache if use_cache is None else use_cache
        if self.gradient_checkpointing and self.training:
            use_cache = False
        maps = config.output_attentions if output_attentions is None else output_attentions
        states = (
            config.output_hidden_states if output_hidden_states is None else output_hidden_states
        )
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=config)
        if position_ids is None:
            seen = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = (torch.arange(x.shape[1], device=x.device) + seen)[None]
        self._check_cache(past_key_values)
        visible = visibility(config, x, attention_mask, past_key_values, position_ids)
        rotary = {}
        if config.position == "rope":
            rotary = self.rotary(x, position_ids)
        elif config.position == "sinusoidal":
            x = x + sinusoidal(position_ids, config.hidden_size, x.dtype)
        all_states, all_maps = [x], []
        for i, block in enumerate(self.layers):
            cache = None
            if past_key_values is not None:
                cache = LayerCache(past_key_values, i, first=visible.mask is None)
            x, layer_maps = block(
                x,
                visible=visible,
                rotary=rotary,
                cache=cache,
                backend=config._attn_implementation,
                return_maps=bool(maps),
            )
            all_states.append(x)
            if layer_maps is not None:
                all_maps.append(layer_maps["difference"])
        x = self.norm(x)
        output = BaseModelOutputWithPast(
            last_hidden_state=x,
            past_key_values=past_key_values if use_cache else None,
            hidden_states=(*all_states[:-1], x) if states else None,
            attentions=tuple(all_maps) if maps else None,
        )
        return output.to_tuple() if return_dict is False else output

    @property
    def attention_layers(self) -> list[Attention]:
        """Return the mechanism of every block, first to last."""
        return [block.self_attn for block in self.layers]  # type: ignore[misc]

    def _check_cache(self, cache: Cache | None) -> None:
        layer = self.attention_layers[0]
        if cache is not None and cache.is_compileable and not layer.static_cache:
            raise ValueError(
                f"past_key_values: {layer.name} does not work with a static cache; use a dynamic "
                "one (cache_implementation='dynamic')"
            )


class AntiphaseForCausalLM(AntiphasePreTrainedModel, GenerationMixin):
    """A language model: the stack and a head over the vocabulary."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: AntiphaseConfig) -> None:
        super().__init__(config)
        self.model = AntiphaseModel(config)
        self._is_stateful = mechanism(config.attention).running_state  # no going back in decoding
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

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
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Return logits [B, T, vocabulary], and with `labels` the loss of each next token."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        x = outputs.last_hidden_state
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(x[:, keep, :])
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs
            )
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
        return output.to_tuple() if return_dict is False else output


class AntiphaseForSequenceClassification(
    GenericForSequenceClassification,
    AntiphasePreTrainedModel,
):
    """A classifier of whole texts: the stack and a head on the last token that counts."""
