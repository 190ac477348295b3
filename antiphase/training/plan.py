"""What a run will need, before it is started: memory by rank, speed, time, and how to launch it.

The model is sharded by FSDP2 over all devices: each holds its part of the weights, gradients and
AdamW's two moments in fp32, and gathers the weights of one block after another. Activations are
counted, not estimated by a formula: the model's forward pass runs on tensors without memory
(PyTorch's fake tensors) with one layer and with two, and what autograd saves is added up.
"""

import math
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from antiphase.models import AntiphaseConfig, AntiphaseForCausalLM, preset
from antiphase.models.summary import summarise
from antiphase.tasks import task
from antiphase.tasks.text.tokenizer import BPE, BYTES
from antiphase.training.components import LANGUAGE, model_config
from antiphase.training.recipe import Recipe

USABLE = 0.92  # of a device's memory; the rest is for its context, for kernels and fragmentation
FP32 = 4
MOMENTS = 2  # of AdamW


@dataclass(frozen=True)
class Hardware:
    """What a run is planned for.

    Attributes:
        devices: number of accelerators, one process each.
        memory: bytes of one.
        peak: FLOP/s of one, for bf16 matrix products.
        mfu: fraction of the peak that the model's own FLOPs are expected to reach.
    """

    devices: int = 8
    memory: float = 80e9
    peak: float = 989.4e12  # H100 SXM, dense
    mfu: float = 0.4

    def __post_init__(self) -> None:
        for name in ("devices", "memory", "peak"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected a number above 0")
        if not 0 < self.mfu <= 1:
            raise ValueError(f"mfu: got {self.mfu}, expected a fraction above 0 and up to 1")


@dataclass(frozen=True)
class Memory:
    """Bytes in one rank.

    Attributes:
        weights: its part of the parameters, fp32.
        gradients: its part, fp32.
        optimiser: its part of AdamW's moments, fp32.
        gathered: complete weights of embeddings, head and two blocks (one is computed with, the
            next is on its way), and complete gradients of embeddings, head and one block.
        activations: what autograd saves of one micro-batch; with activation checkpointing, the
            inputs of the blocks.
        temporary: the logits and their gradient, beside what autograd saves of them; or what one
            block saves while it is computed again, which is later, when these are gone.
    """

    weights: int
    gradients: int
    optimiser: int
    gathered: int
    activations: int
    temporary: int

    @property
    def state(self) -> int:
        """Return the bytes that stay between steps: weights, gradients and moments."""
        return self.weights + self.gradients + self.optimiser

    @property
    def total(self) -> int:
        """Return the bytes at the peak, at most: not all of them are needed at one moment."""
        return self.state + self.gathered + self.activations + self.temporary


@dataclass(frozen=True)
class Plan:
    """What a run will need.

    Attributes:
        recipe: of the run, with as much gradient accumulation as memory asks for.
        hardware: that it is planned for.
        parameters: of the model.
        sequences: in the micro-batch of one rank.
        memory: in one rank.
        flops: of one token, forward and backward, without what checkpointing computes again.
    """

    recipe: Recipe
    hardware: Hardware
    parameters: int
    length: int
    sequences: int
    memory: Memory
    flops: float

    @property
    def fits(self) -> bool:
        """Return whether a device has the memory."""
        return self.memory.total <= USABLE * self.hardware.memory

    @property
    def tokens(self) -> int:
        """Return the number of tokens that are trained on."""
        return self.recipe.steps * self.recipe.batch_size * self.length

    @property
    def tokens_per_second(self) -> float:
        """Return the speed of all devices together."""
        return self.hardware.devices * self.hardware.peak * self.hardware.mfu / self.flops

    @property
    def hours(self) -> float:
        """Return the time of the run."""
        return self.tokens / self.tokens_per_second / 3600


def plan(recipe: Recipe, hardware: Hardware) -> Plan:
    """Plan a run.

    Args:
        recipe: of a new model. If its micro-batch does not fit, the smallest `accumulate` that
            makes it fit is taken; the largest possible one if none does.
        hardware: that it is for.

    Raises:
        ValueError: the recipe starts from a pretrained model, or its batch cannot be divided among
            the devices.
    """
    if recipe.start is not None:
        raise ValueError(f"--plan: is for new models, and the recipe starts from {recipe.start!r}")
    devices, batch = hardware.devices, recipe.batch_size
    allowed = [
        parts
        for parts in range(recipe.accumulate, batch + 1)
        if batch % parts == 0 and batch // parts % devices == 0
    ]
    if not allowed:
        raise ValueError(
            f"batch_size: {batch} sequences in {recipe.accumulate} micro-batches cannot be divided "
            f"among {devices} devices; change batch_size, accumulate or the number of devices"
        )
    config, length = planned_config(recipe)
    with torch.device("meta"):
        model = AntiphaseForCausalLM(config)
    parameters = sum(p.numel() for p in model.parameters())
    # a token sees half of the sequence on average; backward costs twice the forward pass
    flops = 3.0 * summarise(config, max(1, length // 2), torch.bfloat16).flops
    bf16, per_sequence = recipe.precision == "bf16", {}
    for checkpointing in {False, recipe.checkpointing}:
        per_sequence[checkpointing] = saved_bytes(
            config, length, bf16=bf16, checkpointing=checkpointing
        )
    found = None
    for accumulate in allowed:
        sequences = batch // accumulate // devices
        memory = _memory(model, devices, sequences, length, recipe, per_sequence)
        chosen = recipe.changed(accumulate=accumulate)
        found = Plan(chosen, hardware, parameters, length, sequences, memory, flops)
        if found.fits:
            break
    assert found is not None
    return found


def planned_config(recipe: Recipe) -> tuple[AntiphaseConfig, int]:
    """Return the configuration of a recipe's model and its sequence length, reading no text."""
    if recipe.task != LANGUAGE:
        data = task(recipe.task)(seed=recipe.seed, **recipe.task_options)
        return model_config(recipe, data), data.length
    length = int(recipe.task_options.get("length", 256))
    tokenizer = recipe.task_options.get("tokenizer", BYTES)
    sizes = {"max_position_embeddings": max(2048, length)}
    if tokenizer == BYTES:
        sizes["vocab_size"] = 257
    elif tokenizer.startswith(BPE):
        sizes["vocab_size"] = int(tokenizer.removeprefix(BPE))
    fields = {**sizes, **recipe.model}  # of another tokenizer: the preset's vocabulary
    options = {"attention_options": recipe.attention_options}
    return preset(recipe.size, recipe.attention, **options, **fields), length


def saved_bytes(
    config: AntiphaseConfig, length: int, *, bf16: bool = False, checkpointing: bool = False
) -> tuple[float, float]:
    """Return what autograd saves in a forward pass, per sequence, without computing anything.

    Args:
        config: of the model.
        length: tokens in a sequence.
        bf16: weights and activations in bf16 instead of fp32.
        checkpointing: of activations, block by block.

    Returns:
        Bytes of a block, and of all that is outside of the blocks. Attention is counted as the
        fused kernels save it: queries, keys, values, output and one statistic per row. For `lstm`
        it is a lower bound: the kernels of an LSTM save a workspace that fake tensors do not have.
    """
    count = 2 if config.attention_layer().mixes_sequences else 1
    one, two = (
        _saved(config, layers, count, length, bf16, checkpointing) / count for layers in (1, 2)
    )
    return two - one, 2 * one - two


def _saved(
    config: AntiphaseConfig, layers: int, count: int, length: int, bf16: bool, checkpointing: bool
) -> int:
    fields = config.to_dict() | {"num_hidden_layers": layers}
    fields.pop("layer_types", None)
    with torch.device("meta"):
        model = AntiphaseForCausalLM(AntiphaseConfig.from_dict(fields)).train()
    if bf16:
        model = model.to(torch.bfloat16)
    with FakeTensorMode():
        model._apply(lambda t: torch.empty(t.shape, dtype=t.dtype))  # from `meta` to fake ones
        model.tie_weights()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        return forward_bytes(model, torch.zeros(count, length, dtype=torch.long))


def forward_bytes(model: AntiphaseForCausalLM, ids: torch.Tensor) -> int:
    """Return the bytes that autograd saves in one forward pass, without weights and buffers.

    Args:
        model: on real or on fake tensors.
        ids: tokens [B, T].
    """
    held: dict[int, torch.UntypedStorage] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        held[storage._cdata] = storage
        return tensor

    own = {p.untyped_storage()._cdata for p in (*model.parameters(), *model.buffers())}
    with saved_tensors_hooks(save, lambda tensor: tensor):
        model(ids, labels=ids, use_cache=False)
    return sum(s.nbytes() for key, s in held.items() if key not in own)


def _memory(
    model: AntiphaseForCausalLM,
    devices: int,
    sequences: int,
    length: int,
    recipe: Recipe,
    per_sequence: dict[bool, tuple[float, float]],
) -> Memory:
    shard = trained = blocks = 0
    for p in model.parameters():
        rows = p.shape[0] if p.dim() else 1
        part = math.ceil(rows / devices) * (p.numel() // rows)
        shard += part
        trained += part if p.requires_grad else 0
    layers = model.config.num_hidden_layers
    for block in model.model.layers:
        blocks += sum(p.numel() for p in block.parameters())
    width = 2 if recipe.precision == "bf16" else FP32
    block, rest = blocks // layers, sum(p.numel() for p in model.parameters()) - blocks
    of_block, outside = per_sequence[recipe.checkpointing]
    again = per_sequence[False][0] - outside if recipe.checkpointing else 0.0
    logits = length * model.config.vocab_size * (width + FP32)
    return Memory(
        weights=FP32 * shard,
        gradients=FP32 * trained,
        optimiser=MOMENTS * FP32 * trained,
        gathered=width * (2 * rest + 3 * block),
        activations=round(sequences * (layers * of_block + outside)),
        temporary=round(sequences * max(logits, again)),
    )
