"""How arms trained: steps to the criterion, with seeds that did not reach it, and branch RMS."""

import json

import pytest

from antiphase.analysis.statistics import CensoredSteps, log_rank
from antiphase.experiments import training_tables
from antiphase.experiments.arms import GATED, STANDARD, V1, V2, on_task
from antiphase.experiments.experiment import Table
from antiphase.experiments.trained_models import TrainedModel, TrainedModels
from tests.experiments.small import small_run

ARMS = (STANDARD, V1, V2, GATED)
OTHER = on_task("other", (STANDARD, V1), {"task": "recall", "task_options": {}})
END = 600  # the decay of a run that did not reach the criterion begins here
BRANCHES = Table("branches", [], [])


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Return a function from steps to the criterion by arm (None: not reached) to its models."""
    monkeypatch.setattr(training_tables, "_branch_table", lambda models, arms: BRANCHES)

    def plant(steps, **changes):
        found = {}
        for name, by_seed in steps.items():
            arm = next(arm for arm in (*ARMS, *OTHER.values()) if arm.name == name)
            found[name] = []
            for seed, step in enumerate(by_seed):
                run = small_run(arm, seed, **changes)
                folder = run.folder(tmp_path)
                folder.mkdir()
                outcome = {
                    "criterion": 0.99,
                    "reached": step is not None,
                    "step": step,
                    "decay_from": END if step is None else step + 50,
                    "end": END + 100,
                }
                if run.recipe.criterion is not None:
                    (folder / "criterion.json").write_text(json.dumps(outcome))
                found[name].append(TrainedModel(name, run, folder))
        return TrainedModels(found)

    return plant


STEPS = {
    "standard": [400, 450, 500, None, 350, None, 400, 450],
    "V1": [100, 150, 100, 150, 200, 100, 150, 100],
    "V2": [400, None, 500, 450, 350, 400, None, 450],
    "gated": [None, None, None, None, None, 300, 300, 300],
}


def test_steps_to_the_criterion_show_censored_seeds_and_the_log_rank_test(models):
    table, branches = training_tables.training_tables(models(STEPS), ARMS)
    assert table.title == "Steps to an accuracy of 0.99, task composite_needle"
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["standard"] == ["0.75", "450", "", "400, 450, 500, > 600, 350, > 600, 400, 450"]
    assert rows["V1"][:2] == ["1.00", "100"]
    assert rows["gated"][1] == "not reached by half"
    assert float(rows["V1"][2]) < 0.001
    assert float(rows["V2"][2]) > 0.5
    standard, gated = (
        CensoredSteps(
            tuple(END if s is None else s for s in STEPS[arm]),
            tuple(s is not None for s in STEPS[arm]),
        )
        for arm in ("standard", "gated")
    )
    assert rows["gated"][2] == f"{log_rank(gated, standard):.3g}"
    assert branches == BRANCHES


def test_arms_are_compared_on_the_same_task(models):
    arms = (*ARMS, *OTHER.values())
    steps = {**STEPS, "standard (other)": [900] * 8, "V1 (other)": [900] * 8}
    needles, other, _ = training_tables.training_tables(models(steps), arms)
    assert [row[0] for row in needles.rows] == [arm.name for arm in ARMS]
    assert other.title == "Steps to an accuracy of 0.99, task recall"
    assert [row[3] for row in other.rows] == ["", "1"]  # against standard attention on that task


def test_without_standard_there_is_no_p(models):
    (table, _) = training_tables.training_tables(models({"V1": STEPS["V1"]}), [STANDARD, V1])
    assert [row[3] for row in table.rows] == [""]


def test_runs_without_a_criterion_have_no_such_table(models):
    found = training_tables.training_tables(models({"V1": STEPS["V1"]}, criterion=None), [V1])
    assert found == [BRANCHES]
    assert training_tables.training_tables(TrainedModels({}), [V1]) == []


def test_cost_counts_a_shared_run_once_in_the_sum(tmp_path):
    for name, hours in (("a", 1.0), ("b", 2.0), ("short", 0.5), ("zero", 0.0), ("old", None)):
        (tmp_path / name).mkdir()
        line = {"step": 1, "held_out_loss": 1.0}
        if hours is not None:
            line["cpu_seconds"] = 3600 * hours
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    a, b, short, zero, old = (tmp_path / name for name in ("a", "b", "short", "zero", "old"))
    table = training_tables.cost_table({"1 One": [a, b], "2 Two": [b, old]}, [short, zero])
    assert table is not None
    assert table.rows == [
        ["1 One", "2", "3.0", "0"],
        ["2 Two", "2", "2.0", "1"],
        ["tuning", "2", "0.5", "0"],  # a run of 0 seconds has a record
        ["all, each run once", "5", "3.5", "1"],
    ]
    assert training_tables.cost_table({"2 Two": [old]}, []) is None
