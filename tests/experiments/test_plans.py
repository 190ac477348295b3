"""The plans of the lab agree with its registry, and their recipes with their conditions."""

import itertools

import pytest

from antiphase.experiments.conditions import AS_TRAINED, CONDITIONS, GRID, LENGTHS, STRESS
from antiphase.experiments.plans import PRIMARY, QUICK
from antiphase.experiments.registry import EXPERIMENTS, select_tests
from antiphase.tasks import Role, task

PLANS = (QUICK, PRIMARY)
each = pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.id)


def test_plans_run_the_tests_that_the_registry_names():
    assert list(PRIMARY.tests) == [t.number for t in select_tests(None, full=True)]
    assert list(QUICK.tests) == [t.number for t in select_tests(None, full=False)]
    assert set(PRIMARY.tests) <= set(EXPERIMENTS)


def test_no_seed_is_used_twice():
    used = [set(plan.seeds) for plan in PLANS]
    used += [set(plan.grid.seeds) for plan in PLANS if plan.grid is not None]
    assert not any(one & other for one, other in itertools.combinations(used, 2))
    assert PRIMARY.locked
    assert len(PRIMARY.seeds) >= 8


@each
def test_conditions_fit_the_recipe(plan):
    recipe = plan.recipe
    for condition in CONDITIONS:
        dataset = task(recipe.task)(size=20, split="test", **condition.task_options(recipe))
        batch = dataset.examples(range(20))
        assert dataset.length == (condition.length or 1) * recipe.task_options["length"]
        if condition != AS_TRAINED:
            assert ((batch.roles == Role.TARGET).sum(1) == 1).all()  # each needle is shown once
    assert GRID[max(LENGTHS), "near"] == STRESS
    assert AS_TRAINED.task_options(recipe) == recipe.task_options


@each
def test_a_null_of_another_head_has_enough_heads(plan):
    """With two heads, A2 of another head only swaps them."""
    from antiphase.training.components import dataset, model_config

    config = model_config(plan.recipe, dataset(plan.recipe, "train", 1))
    assert config.num_attention_heads // 2 >= 4  # V1 has half the heads of standard attention
