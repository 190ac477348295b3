"""What the mixers of the road cost by length: training tokens per second, and memory."""

import statistics
from collections.abc import Sequence

import torch

from antiphase.benchmarks import timing
from antiphase.experiments.arms import Arm, Settings, arm_recipe
from antiphase.experiments.road import ARMS, RATES, TASKS
from antiphase.experiments.road_page import RoadCost
from antiphase.models import AntiphaseConfig, AntiphaseForCausalLM
from antiphase.models.summary import summarise
from antiphase.training import Recipe
from antiphase.training.components import dataset, model_config
from antiphase.training.plan import forward_bytes

LENGTHS = (64, 256, 1024, 2048)
ROUNDS = 5


def road_costs(
    arms: Sequence[Arm] = ARMS,
    lengths: Sequence[int] = LENGTHS,
    rounds: int = ROUNDS,
) -> list[RoadCost]:
    """Measure all mixers at every length, in turns and on one thread.

    Args:
        arms: the mixers.
        lengths: of a sequence.
        rounds: number of measured rounds.

    Returns:
        One entry per mixer and length. Training memory is what autograd saves in a forward pass, of
        which some depends on the machine's kernels: a fused LSTM has a workspace. Decoding memory
        is counted from the configuration.
    """
    recipe = next(iter(TASKS.values()))
    configs = {arm.name: _config(recipe, arm, max(lengths)) for arm in arms}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [cost for length in lengths for cost in _at_length(configs, length, rounds)]
    finally:
        torch.set_num_threads(threads)


def _config(recipe: Recipe, arm: Arm, length: int) -> AntiphaseConfig:
    recipe = arm_recipe(recipe, arm, Settings(RATES[0]))
    config = model_config(recipe, dataset(recipe, "train", 1))
    config.max_position_embeddings = max(length, config.max_position_embeddings)
    return config


def _at_length(configs: dict[str, AntiphaseConfig], length: int, rounds: int) -> list[RoadCost]:
    models = {name: AntiphaseForCausalLM(config) for name, config in configs.items()}
    ids = torch.randint(next(iter(configs.values())).vocab_size, (1, length))
    samples = timing.interleave({name: _step(m, ids) for name, m in models.items()}, rounds)
    found = []
    for name, config in configs.items():
        seconds = statistics.median(sample.cpu for sample in samples[name])
        cost = summarise(config, length, torch.float32)
        found.append(
            RoadCost(
                name,
                length,
                length / seconds,
                forward_bytes(models[name], ids),
                cost.cache_bytes * length + cost.state_bytes,
            )
        )
    return found


def _step(model: AntiphaseForCausalLM, ids: torch.Tensor) -> timing.Work:
    def work() -> None:
        model(ids, labels=ids, use_cache=False).loss.backward()

    return work
