"""The plans of the lab agree with its registry, and their recipes with their conditions."""

import io
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from antiphase.experiments import study
from antiphase.experiments.arms import Arm, Settings, arm_recipe
from antiphase.experiments.conditions import (
    AS_TRAINED,
    CONDITIONS,
    GRID,
    LENGTHS,
    STRESS,
    ChangedTask,
)
from antiphase.experiments.lock import LockError, check_lock
from antiphase.experiments.plans import (
    PLANS,
    PRIMARY,
    QUICK,
    SYNTHETIC,
    lab_command,
    select_tests,
)
from antiphase.experiments.registry import EXPERIMENTS, LOCKED
from antiphase.tasks import Role, task

RETRIEVAL = [plan for plan in PLANS.values() if not plan.on_text]
each = pytest.mark.parametrize("plan", RETRIEVAL, ids=lambda plan: plan.id)


def test_plans_run_the_tests_that_the_registry_names():
    named = {study for test in EXPERIMENTS.values() for study in test.studies}
    assert named == {*PLANS}
    for plan in PLANS.values():
        assert [test.number for test in select_tests(plan)] == [*plan.tests]
        assert all(EXPERIMENTS[number].text == plan.on_text for number in plan.tests)
    assert PLANS["replication"].tests == PRIMARY.tests


def test_tests_are_chosen_within_a_study():
    assert [test.number for test in select_tests(QUICK, [9, 2, 2])] == [2, 9]
    with pytest.raises(ValueError, match="--only: got 14, the tests are 1, 2, 3"):
        select_tests(QUICK, [14])
    with pytest.raises(ValueError, match="it is of --study ladder-nano or ladder-micro"):
        select_tests(QUICK, [20])
    with pytest.raises(ValueError, match=r"test 2 is not part of the study 'primary', .*synthetic"):
        select_tests(PRIMARY, [2])
    commands = [lab_command(name) for name in ("quick", "primary", "ladder-nano", "of a test")]
    assert commands == [
        "antiphase lab",
        "antiphase lab --full",
        "antiphase lab --study ladder-nano",
        "antiphase lab",
    ]


def test_the_primary_study_is_still_the_one_that_was_locked():
    """Its published results stand only as long as predictions and design do not change."""
    folder = Path(__file__).parents[2] / "docs" / "results" / "lab"
    lock = check_lock(
        PRIMARY.id, PRIMARY.seeds, study.predictions_of(PRIMARY), study.design_of(PRIMARY), folder
    )
    assert lock["digest"].startswith("fd7721d599cd06dc")


def test_the_seeds_of_the_published_study_are_not_locked_for_other_predictions(tmp_path):
    lock = study.lock_study(PRIMARY, tmp_path / "again")  # the same predictions, once more
    assert lock["digest"].startswith("fd7721d599cd06dc")
    for changed in (replace(PRIMARY, tests=(7,)), replace(SYNTHETIC, seeds=(107, 108))):
        with pytest.raises(LockError, match="published_study"):
            study.lock_study(changed, tmp_path / changed.id)
        assert not (tmp_path / changed.id).exists()


def test_the_help_names_every_locked_study():
    assert {*LOCKED} == {plan.id for plan in PLANS.values() if plan.locked}


def test_a_study_says_what_it_costs_before_it_starts(monkeypatch):
    """Runs and tokens at most, with the length of every arm's own recipe."""
    monkeypatch.setattr(study, "_seconds_per_step", lambda recipe: 0.1)
    arms = study.distinct_arms([EXPERIMENTS[number].load() for number in PRIMARY.tests])
    other = Arm("other", "standard", changes={"steps": 3000, "task_options": {"length": 64}})
    said = []
    for some in (arms, [*arms, other]):
        console = Console(file=io.StringIO(), width=500)
        study._announce(PRIMARY, some, 2, console)
        said.append(console.file.getvalue())
    # (96 x 1500 + 112 x 400 steps) of 16 x 128 tokens; top-k has four more, one for each k
    assert "12 arms x 8 seeds = 96 runs, and for tuning about 112 short ones" in said[0]
    assert "at most 387M training tokens, 2 h 37 min on 2 cores" in said[0]
    assert "13 arms x 8 seeds = 104 runs, and for tuning about 121 short ones" in said[1]
    assert "at most 415M training tokens" in said[1]


def test_no_seed_is_used_twice():
    used = [set(plan.seeds) for plan in PLANS.values()]
    used += [set(plan.grid.all_seeds) for plan in PLANS.values() if plan.grid is not None]
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


@pytest.mark.parametrize(
    ("plan", "number"),
    [pytest.param(plan, n, id=f"{plan.id}-{n}") for plan in RETRIEVAL for n in plan.tests],
)
def test_every_condition_of_a_test_fits_the_tasks_of_its_arms(plan, number):
    """Also with the changes of an arm: its sequences can be generated, and end with a question."""
    test = EXPERIMENTS[number].load()
    assert len({condition.name for condition in test.conditions}) == len(test.conditions)
    distinct = {str(arm.changes): arm for arm in test.arms}.values()
    for recipe in (arm_recipe(plan.recipe, arm, Settings(1e-3)) for arm in distinct):
        for condition in test.conditions:
            options = condition.task_options(recipe)
            batch = task(recipe.task)(size=4, split="test", **options).examples(range(4))
            assert (batch.roles[:, -1] == Role.TARGET).all()
            if isinstance(condition, ChangedTask):
                assert options != recipe.task_options


@each
def test_a_null_of_another_head_has_enough_heads(plan):
    """With two heads, A2 of another head only swaps them."""
    from antiphase.training.components import dataset, model_config

    config = model_config(plan.recipe, dataset(plan.recipe, "train", 1))
    assert config.num_attention_heads // 2 >= 4  # V1 has half the heads of standard attention
