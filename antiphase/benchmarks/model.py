"""Models compared: a training step, a forward pass, and decoding with a KV cache.

The workload `compiled` compares decoding with decoding that is compiled, with a static cache
(`antiphase.models.compiled_decoding`).

Models of one size and of equal parameters (see `antiphase show SIZE --every`), with random weights.
The baseline is our `standard`, on the same fused backend; transformers' `DiffLlama` of equal shape
runs unchanged, and once more after `antiphase.accelerate`.
"""

import copy
import functools
import gc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

from antiphase.benchmarks import timing
from antiphase.models import AntiphaseForCausalLM, preset
from antiphase.models.accelerate import accelerate
from antiphase.models.compiled_decoding import compiled_step

BASELINE = "standard"
MORE_HEADS = "standard, 1.5 x heads"
DIFFLLAMA = "DiffLlama"
ACCELERATED = "DiffLlama, accelerated"
TRAINED = (BASELINE, "diff_v1", "diff_v2", "low_rank_noise")
COMPILED = {name: f"{name}, compiled" for name in (BASELINE, "diff_v1", "diff_v2")}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
WORKLOADS = ("training", "forward", "decoding", "compiled")


@dataclass(frozen=True)
class ModelSetting:
    """The size of the models, the lengths, and how they run."""

    size: str = "mini"
    length: int = 2048  # of training and forward
    contexts: tuple[int, ...] = (1024, 2048)  # of decoding
    new_tokens: int = 256
    threads: int = 1
    dtype: str = "fp32"
    kv_heads: int | None = None


@dataclass(frozen=True)
class Entry:
    """One model in one workload: its time, and ratios to the baseline and to DiffLlama."""

    name: str
    parameters: int
    wall: timing.Ratio
    cpu: timing.Ratio
    to_diffllama: timing.Ratio | None  # CPU time
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """One workload, and the times of all models."""

    title: str
    entries: list[Entry]
    compile_seconds: dict[str, float] = field(default_factory=dict)  # of compiled models, once


def run(
    setting: ModelSetting, workloads: list[str], rounds: int, tick: Callable[[str], None]
) -> Iterator[Comparison]:
    """Compare the models on one workload after the other.

    Args:
        setting: The size of the models, the lengths, and how they run.
        workloads: Names from `WORKLOADS`.
        rounds: Number of measured rounds.
        tick: Called after each round with the title of the workload.

    Yields:
        One comparison per workload, and per context of decoding.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(setting.threads)
    try:
        models = _models(setting)
        longest = max(setting.length, *setting.contexts)
        ids = torch.randint(0, models[BASELINE].config.vocab_size, (1, longest))
        sequence = ids[:, : setting.length]
        makers: dict[str, dict[str, Callable[[Any], timing.Work]]] = {
            "training": {
                f"training step, T = {setting.length}": lambda net: _training_step(net, sequence)
            },
            "forward": {f"forward, T = {setting.length}": lambda net: _forward(net, sequence)},
            "decoding": {
                f"decoding {setting.new_tokens} tokens after {n}": functools.partial(
                    decoding, ids=ids[:, :n], new_tokens=setting.new_tokens
                )
                for n in setting.contexts
            },
        }
        for workload in workloads:
            for title, make in makers.get(workload, {}).items():
                work = {name: make(model) for name, model in models.items()}
                yield _compare(title, work, models, rounds, tick)
        if "compiled" in workloads:
            for n in setting.contexts:
                yield _compare_compiled(models, ids[:, :n], setting.new_tokens, rounds, tick)
    finally:
        torch.set_num_threads(threads)


def as_json(
    setting: ModelSetting, comparisons: list[Comparison], about: dict[str, Any]
) -> dict[str, Any]:
    """Return all measurements as plain data, with the machine and the setting."""
    return {
        "machine": about,
        "setting": asdict(setting),
        "comparisons": [asdict(comparison) for comparison in comparisons],
    }


def _models(setting: ModelSetting) -> dict[str, Any]:
    torch.manual_seed(0)
    longest = max(setting.length, *setting.contexts)
    fields = {"max_position_embeddings": longest + setting.new_tokens}
    if setting.kv_heads is not None:
        fields["num_key_value_heads"] = setting.kv_heads
    models: dict[str, Any] = {
        name: AntiphaseForCausalLM(preset(setting.size, name, **fields)) for name in TRAINED
    }
    config = models[BASELINE].config
    more = config.num_attention_heads * 3 // 2
    if more % config.num_key_value_heads == 0:  # DIFF V2's own baseline of equal parameters
        models[MORE_HEADS] = AntiphaseForCausalLM(
            preset(
                setting.size,
                BASELINE,
                **fields,
                num_attention_heads=more,
                head_dim=config.head_dim,
                intermediate_size=config.intermediate_size - config.hidden_size // 3,
            )
        )
    shape = DiffLlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    models[DIFFLLAMA] = DiffLlamaForCausalLM(shape)
    models[ACCELERATED] = copy.deepcopy(models[DIFFLLAMA])
    accelerate(models[ACCELERATED])
    return {name: model.to(DTYPES[setting.dtype]) for name, model in models.items()}


def _training_step(model: nn.Module, ids: Tensor) -> timing.Work:
    def step() -> None:
        model.train()
        model.zero_grad(set_to_none=True)
        model(ids, labels=ids, use_cache=False).loss.backward()

    return step


def _forward(model: nn.Module, ids: Tensor) -> timing.Work:
    @torch.no_grad()
    def forward() -> None:
        model.eval()(ids, use_cache=False)

    return forward


def decoding(model: nn.Module, ids: Tensor, new_tokens: int) -> timing.Work:
    """Return the greedy decoding of `new_tokens` after `ids` [B, T]; prefill is not timed."""
    prefilled: list[Any] = []

    @torch.no_grad()
    def decode() -> None:
        model.eval()
        if not prefilled:  # in the warm-up round
            prefilled.append(model(ids, use_cache=True, logits_to_keep=1).past_key_values)
        cache = copy.deepcopy(prefilled[0])
        token = ids[:, :1]
        for _ in range(new_tokens):
            logits = model(token, past_key_values=cache, use_cache=True).logits
            token = logits[:, -1:].argmax(-1)

    return decode


def _compare_compiled(
    models: dict[str, Any], ids: Tensor, new_tokens: int, rounds: int, tick: Callable[[str], None]
) -> Comparison:
    """Compare decoding of `new_tokens` after `ids` [B, T], compiled and not."""
    torch._dynamo.reset()  # PyTorch limits how often one function is compiled
    models = {name: models[name] for name in COMPILED}
    seconds: dict[str, float] = {}
    work = {name: decoding(model, ids, new_tokens) for name, model in models.items()}
    for name, compiled in COMPILED.items():
        models[compiled] = copy.deepcopy(models[name])
        work[compiled] = compiled_decoding(models[compiled], ids, new_tokens, compiled, seconds)
    title = f"decoding {new_tokens} tokens after {ids.shape[1]}"
    return _compare(title, work, models, rounds, tick, seconds)


def compiled_decoding(
    model: nn.Module, ids: Tensor, new_tokens: int, name: str, seconds: dict[str, float]
) -> timing.Work:
    """Return compiled greedy decoding of `new_tokens` after `ids` [B, T]; prefill is not timed.

    Args:
        model: a causal language model.
        ids: the prompt [B, T].
        new_tokens: number of tokens to decode.
        name: of the model.
        seconds: gets the time that compiling took, by name.
    """
    state: dict[str, Any] = {}

    @torch.no_grad()
    def decode() -> None:
        if not state:  # in the warm-up round
            state["step"], cache = compiled_step(model.eval(), ids, new_tokens)
            state["cache"], state["prefilled"] = cache, copy.deepcopy(cache)
            seconds[name] = timing.time_once(lambda: state["step"](ids[:, :1])).wall
        _restore(state["cache"], state["prefilled"])
        token = ids[:, :1]
        for _ in range(new_tokens):
            token = state["step"](token)

    return decode


def _restore(cache: Any, earlier: Any) -> None:
    """Copy the tensors of a static cache back into one that a compiled graph holds."""
    for layer, saved in zip(cache.layers, earlier.layers, strict=True):
        for name, value in vars(saved).items():
            if isinstance(value, Tensor):
                getattr(layer, name).copy_(value)


def _compare(
    title: str,
    work: dict[str, timing.Work],
    models: dict[str, Any],
    rounds: int,
    tick: Callable[[str], None],
    compile_seconds: dict[str, float] | None = None,
) -> Comparison:
    gc.collect()
    samples = timing.interleave(work, rounds, lambda: tick(title))
    entries = []
    for name, times in samples.items():
        to_diffllama = None
        if name != DIFFLLAMA and DIFFLLAMA in samples:
            to_diffllama = timing.ratio(times, samples[DIFFLLAMA], "cpu")
        entries.append(
            Entry(
                name,
                models[name].num_parameters(),
                timing.ratio(times, samples[BASELINE], "wall"),
                timing.ratio(times, samples[BASELINE], "cpu"),
                to_diffllama,
                timing.seconds(times, "wall"),
            )
        )
    return Comparison(title, entries, compile_seconds or {})
