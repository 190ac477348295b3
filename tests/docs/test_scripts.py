"""The scripts behind published numbers build what they say; they train for hours, tests do not."""

import pytest
import torch

from antiphase.experiments.plans import PLANS
from tests.docs.pages import script, text


def test_the_starts_of_the_initialisation_search():
    search = script("initialisation_search")
    started = {}
    for name in search.STARTS:
        torch.manual_seed(0)
        job = {"size": "nano", "attention": "diff_v1", "start": name}
        started[name] = search.started(job, 64, {})
    published, scaled = started["published"], started["scaled"]
    assert published.config.initialisation == "published"
    last = {name: net.model.layers[-1] for name, net in started.items()}
    W_O = {name: block.self_attn.o_proj.weight.std().item() for name, block in last.items()}
    assert W_O["W_O"] == pytest.approx(W_O["published"] / 2, rel=1e-5)  # L = 2
    assert W_O["scaled"] == pytest.approx(0.01, rel=0.1)
    down = {name: block.mlp.down_proj.weight.std().item() for name, block in last.items()}
    assert down["scaled, down"] == pytest.approx(down["scaled"] / 2, rel=1e-5)
    gain = {name: block.self_attn.norm.gain[0].item() for name, block in last.items()}
    assert gain["published"] == gain["W_O"] == 1.0
    assert gain["gain"] == gain["W_O, gain"] == pytest.approx(gain["scaled"], rel=1e-5)
    wide = started["scaled, wide embedding"].model.embed_tokens.weight.std().item()
    assert wide == pytest.approx(128**-0.5, rel=0.1)
    assert scaled.model.embed_tokens.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_the_search_names_every_run_once():
    jobs = script("initialisation_search").jobs()
    assert len({tuple(job.values()) for job in jobs}) == len(jobs)
    assert {job["attention"] for job in jobs if "gain" in job["start"]} == {"diff_v1"}


def test_the_arms_of_language_micro_differ_in_mechanism_and_start_alone():
    runs = script("language_micro")
    recipes = {arm: runs.Run("final", arm, 1e-3, 0).recipe().as_dict() for arm in runs.ARMS}
    assert len(recipes) == 7
    for arm, recipe in recipes.items():
        assert (recipe["attention"], recipe["model"]["initialisation"]) == runs.ARMS[arm]
        same = {k: v for k, v in recipe.items() if k not in ("attention", "model")}
        assert same == {k: recipes["standard"][k] for k in same}


def test_the_table_of_dead_rows_is_what_the_script_prints():
    rows = script("dead_rows")
    page = text("docs/attention.md")
    assert "python docs/dead_rows.py" in page
    for length in (16, 64):
        cells = " | ".join(f"{rows.dead_fraction(length, d):.2f}" for d in rows.WIDTHS)
        assert f"| {length:,} | {cells} |" in page
    assert rows.dead_fraction(64, 8) > 0.99  # tau is above 1 from 56 keys on


def test_the_settings_of_the_synthetic_study_are_tried_on_standard_attention_and_unused_seeds():
    settings = script("synthetic_settings")
    runs = [settings.run_of(number, seed) for number in settings.TESTS for seed in settings.SEEDS]
    assert {run.recipe.attention for run in runs} == {"standard"}
    assert {run.recipe.task for run in runs} == {
        "unanswerable",
        "many_shot",
        "needle",
        "arithmetic",
    }
    used = {seed for plan in PLANS.values() for seed in (*plan.seeds, *_tuning_seeds(plan))}
    assert not used & {run.recipe.seed for run in runs}


def _tuning_seeds(plan):
    return plan.grid.seeds if plan.grid else ()
