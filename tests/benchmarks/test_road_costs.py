"""What the road's mixers cost, counted on real tensors."""

import torch

from antiphase.benchmarks.road_costs import road_costs
from antiphase.experiments.arms import Settings, arm_recipe
from antiphase.experiments.road import ARMS, TASKS
from antiphase.training.components import dataset, model_config
from antiphase.training.plan import saved_bytes


def test_training_memory_is_that_of_a_real_forward_pass():
    arms = [arm for arm in ARMS if arm.name in ("GRU", "LSTM")]
    costs = {cost.arm: cost.training_bytes for cost in road_costs(arms, (16,), rounds=1)}
    counted = {}
    for arm in arms:
        recipe = arm_recipe(next(iter(TASKS.values())), arm, Settings(1e-3))
        config = model_config(recipe, dataset(recipe, "train", 1))
        block, outside = saved_bytes(config, 16)
        counted[arm.name] = config.num_hidden_layers * block + outside
    assert costs["GRU"] == counted["GRU"]
    assert costs["LSTM"] >= counted["LSTM"]
    if torch.backends.mkldnn.is_available():  # its fused LSTM saves a workspace
        assert costs["LSTM"] > 1.2 * counted["LSTM"]
