"""Test 14: what each arm trains, planted verdicts, rates, the lock, killed and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import stats

from antiphase.analysis.before_after import BeforeAfterOptions, ModelScores
from antiphase.attention.parts import depth_init
from antiphase.experiments import dex_trial
from antiphase.experiments.dex_plan import SEEDS, TUNING_SEED, DexPlan, trial_plan
from antiphase.experiments.dex_rates import RateJob, tune_rates, tuning_table
from antiphase.experiments.dex_tables import as_markdown, judged, sequence_rows, verdict_rows
from antiphase.experiments.dex_trial import ArmJob, _check_base, lock_trial, run_trial
from antiphase.experiments.e14_dex import (
    ARMS,
    BENCHMARKS,
    DEX,
    FAST,
    HELD,
    KV,
    KVO,
    LINEAR,
    LOSS,
    LOWEST,
    NUMBER,
    PREDICTIONS,
    PUBLISHED,
    RANDOM,
    V2,
    ArmRun,
    measured_effects,
)
from antiphase.experiments.lock import LockError, new_lock
from antiphase.experiments.verdicts import Verdict
from antiphase.pretrained.dex import operators
from antiphase.pretrained.head_selection import head_entropy, top_heads
from antiphase.pretrained.methods import method, method_options
from antiphase.pretrained.structure import trainable
from antiphase.training import load_recipe
from tests.cli.runner import invoke
from tests.experiments.small import InProcess
from tests.pretrained.small import made, sequences, tuning_recipe, write_base

QUIET = Console(quiet=True)
OPTIONS = BeforeAfterOptions(sequences=3, questions=2, question_length=300, needles=1)
OPERATION = {"o_proj.W_D", "o_proj.lam.learn"}
K_AND_V = {"k_proj.weight", "v_proj.weight"}
TRAINED = {
    KV.name: K_AND_V,
    HELD.name: K_AND_V | {"o_proj.W_D"},
    DEX.name: K_AND_V | OPERATION,
    FAST.name: K_AND_V | OPERATION,
    LOWEST.name: K_AND_V | {"o_proj.W_D"},
    RANDOM.name: K_AND_V | {"o_proj.W_D"},
    LINEAR.name: K_AND_V | {"o_proj.W_D"},
    KVO.name: K_AND_V | {"o_proj.weight"},
    PUBLISHED.name: K_AND_V | OPERATION | {"o_proj.base_layer.weight"},
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """Return a study of seconds: all arms, a few steps, no benchmarks."""
    base = write_base(tmp_path_factory.mktemp("base"))
    recipe = tuning_recipe(base).changed(steps=3, log_every=1, checkpoint_every=2)
    return DexPlan(recipe, OPTIONS, extensions=0)


def prepared(arm, seed=0):
    """Return a small model as an arm trains it."""
    model = made("llama")
    torch.manual_seed(seed)
    options = method_options(arm.method, arm.options, steps=300)
    return method(arm.method).prepare(model, options, sequences()).model


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_an_arm_trains_its_part_and_nothing_else(arm):
    model = prepared(arm)
    if arm is V2:
        names = {name for name, _ in model.named_parameters() if ".self_attn." in name}
        assert set(trainable(model)) == names
        return
    ends = {name.split("self_attn.")[-1] for name in trainable(model)}
    assert ends == TRAINED[arm.name]
    assert len(trainable(model)) == 2 * len(ends)  # in both layers
    assert bool(operators(model)) == arm.has_operation


def test_the_operation_is_on_the_heads_of_the_arm():
    def heads(arm, seed=0):
        found = operators(prepared(arm, seed)).values()
        return [o.lam.selected[:, 0].nonzero()[:, 0].tolist() for o in found]

    entropy = head_entropy(made("llama"), sequences())
    for arm in (HELD, DEX, FAST, LINEAR, PUBLISHED):
        assert heads(arm) == top_heads(entropy, 0.5), arm.name
    assert heads(LOWEST) == top_heads([-e for e in entropy], 0.5)
    assert len({str(heads(RANDOM, seed)) for seed in SEEDS}) > 1
    assert all(len(of_layer) == 2 for of_layer in heads(RANDOM))


def test_lam_after_annealing_is_as_its_form_says(plan, tmp_path):
    """With a rate so small that only the rate of lam itself decides how far it moves."""
    found = {}
    for arm in (HELD, DEX, FAST, LINEAR):
        short = replace(arm, options={**arm.options, "anneal": 2})
        recipe = plan.recipe_of(short, 1e-6, 5).changed(steps=6, schedule="constant", warmup=0)
        job = ArmJob(recipe, arm.name, OPTIONS)
        job.perform(tmp_path)
        results = json.loads((job.folder(tmp_path) / "results.json").read_text())
        found[arm.name] = np.array(results["lam"])
        assert len(results["operation"]) == 3
    assert found[HELD.name] == pytest.approx([depth_init(0), depth_init(1)])
    assert found[LINEAR.name] == pytest.approx([1, 1])
    assert (np.abs(found[DEX.name]) < 6.1e-6).all()
    assert (np.abs(found[DEX.name]) > 1e-6).all()
    assert found[FAST.name] / found[DEX.name] == pytest.approx([100, 100], rel=0.05)


# verdicts


def planted(loss, score=0.5, operation=0.2, seeds=5):
    random = np.random.default_rng(0)
    runs = []
    for _ in range(seeds):
        noise = random.normal(size=200) * 0.001
        before, side = (
            ModelScores(mean + noise, noise, noise, noise, noise, noise) for mean in (2.5, loss)
        )
        scores = dict.fromkeys(BENCHMARKS, (0.5, score + noise[0]))
        runs.append(ArmRun(before, side, np.full(200, operation), (0.5,), scores))
    return runs


def verdicts(better=0.0, operation=0.2, seeds=5, without=()):
    """Return the verdict on each prediction if DEX is better than all controls by so much."""
    runs = {arm.name: planted(2.0, seeds=seeds) for arm in ARMS}
    runs[KVO.name] = planted(1.9, seeds=seeds)
    for arm in (HELD, DEX, FAST):
        runs[arm.name] = planted(2.0 - better, 0.5 + better, operation, seeds)
    runs[PUBLISHED.name] = planted(1.9 - better, 0.5 + better, operation, seeds)
    runs = {name: own for name, own in runs.items() if name not in without}
    design = {"made": "up"}
    lock = new_lock("dex", SEEDS, {NUMBER: PREDICTIONS}, design)
    results = judged(runs, dict.fromkeys(runs, 1e-4), lock, SEEDS[:seeds])
    assert len(verdict_rows(results)) == len(PREDICTIONS)
    return runs, results["verdicts"]


@pytest.mark.parametrize(
    ("better", "claim", "doubt"),
    [(0.1, "supported", "refuted"), (0.0, "refuted", "supported"), (-0.1, "refuted", "refuted")],
)
def test_a_planted_gain_gives_the_verdict_that_follows(better, claim, doubt):
    _, found = verdicts(better)
    for p, v in zip(PREDICTIONS, found, strict=True):
        expected = claim if p.reading == "claim" else doubt
        if p.kind == "no worse":  # the linear adapter does better than a harmful DEX
            expected = "supported" if better <= 0 else "refuted"
        assert v["verdict"] == expected, v
    primary = [v for v in found if v["primary"]]
    assert [v["reading"] for v in primary] == ["claim", "doubt"]
    supported = {v["reading"]: v["p_holm"] for v in primary if v["verdict"] == "supported"}
    assert all(p < 0.01 for p in supported.values())
    assert all(v["p_holm"] >= v["p"] for v in primary)
    assert all(v["p_holm"] is None for v in found if not v["primary"])


@pytest.mark.parametrize(("operation", "valid"), [(0.0, False), (0.049, False), (0.05, True)])
def test_an_operation_that_never_switched_on_has_no_verdict(operation, valid):
    _, found = verdicts(0.1, operation)
    for v in found:
        assert (v["verdict"] != "invalid") == valid, v
        assert f"= {operation:.3g} (≥ 0.05)" in v["gates"]


def test_each_operation_has_its_own_gate():
    runs, _ = verdicts(0.1)
    runs[DEX.name] = planted(1.9, 0.6, operation=0.01)  # lam as published stays small
    effects = measured_effects(runs)
    for p in PREDICTIONS:
        invalid = p.judge(effects).verdict is Verdict.INVALID
        assert invalid == (DEX.name in (p.effect.arm, p.effect.versus)), p


def test_a_loss_without_room_has_no_verdict():
    runs, _ = verdicts(0.1)
    runs[KVO.name] = planted(2.0 - 0.009)  # training W_O gains less than twice the size
    effects = measured_effects(runs)
    for p in PREDICTIONS:
        invalid = p.judge(effects).verdict is Verdict.INVALID
        assert invalid == (KVO.name not in (p.effect.arm, p.effect.versus)), p


def test_benchmarks_are_descriptive():
    assert {p.effect.metric for p in PREDICTIONS} == {LOSS}


def test_the_operation_starts_at_zero_and_is_trained():
    for arm in (HELD, DEX, FAST, LOWEST, RANDOM, LINEAR, PUBLISHED):
        model = prepared(arm)
        assert all((o.W_D == 0).all() for o in operators(model).values()), arm.name
        ids = sequences()
        for step in (1, 2):
            for o in operators(model).values():
                o.lam.set_step(step)
            model(ids, labels=ids).loss.backward()
        assert all(o.W_D.grad.abs().max() > 0 for o in operators(model).values()), arm.name


def test_few_seeds_are_descriptive_and_a_failed_arm_is_not_run():
    _, found = verdicts(0.1, seeds=4)
    assert {v["verdict"] for v in found} == {"descriptive"}
    assert {v["p_holm"] for v in found} == {None}
    _, found = verdicts(0.1, without=(RANDOM.name, LINEAR.name))
    for v in found:
        gone = "random heads" in v["predicts"] or "linear adapter" in v["predicts"]
        assert (v["verdict"] == "not run") == gone, v


def test_a_difference_has_an_interval_over_sequences_too():
    """Seeds that agree on an average over few sequences do not make it certain."""
    runs, _ = verdicts(0.0)
    gaps = np.random.default_rng(1).normal(size=200)
    for run in runs[HELD.name]:
        run.after.loss[:] -= gaps
    rows = sequence_rows(measured_effects(runs), runs)["rows"]
    over = {row[0]: row[1:] for row in rows}[f"{LOSS}: {LOWEST.name} minus {HELD.name}"]
    half = stats.t.ppf(0.975, 199) * gaps.std(ddof=1) / 200**0.5
    mean = gaps.mean()
    assert over[1] == f"{mean:.4f} [{mean - half:.4f}, {mean + half:.4f}]"
    low, high = map(float, over[0].split("[")[1][:-1].split(","))
    assert high - low < half / 10


def test_runs_of_different_base_models_raise():
    runs, _ = verdicts(0.0)
    _check_base(runs)
    runs[LOWEST.name][1].before.loss[:] += 0.002
    with pytest.raises(ValueError, match=r"base model: has a held-out loss of 2.*lowest entropy"):
        _check_base(runs)


# rates


def test_a_rate_at_the_edge_tries_its_neighbours(plan, tmp_path, monkeypatch):
    best = {KV.name: 4e-4, HELD.name: 8e-4, LINEAR.name: 3.2e-3, V2.name: 1e-4}
    monkeypatch.setattr(dex_trial, "train_all", lambda *args: {})
    monkeypatch.setattr(
        RateJob, "loss", lambda job, root: 2 + abs(np.log(job.recipe.lr / best[job.arm]))
    )
    mine = replace(plan, arms=(KV, HELD, LINEAR, V2), extensions=2)
    losses = tune_rates(mine, tmp_path, QUIET)
    table = tuning_table(mine, losses)
    assert [row[:3] for row in table["rows"]] == [
        [KV.name, "0.0004", "inside"],
        [HELD.name, "0.0008", "inside"],
        [LINEAR.name, "0.0032", "at the edge"],
        [V2.name, "0.0001", "inside"],
    ]
    assert sorted(losses[KV.name]) == [2e-4, 4e-4, 8e-4]
    assert sorted(losses[V2.name]) == [5e-5, 1e-4, 2e-4, 4e-4, 8e-4]
    assert table["rows"][0][table["columns"].index("lr 0.0004")] == "2.0000"
    assert table["rows"][0][table["columns"].index("lr 5e-05")] == ""


def test_a_rate_that_diverges_is_never_chosen_nor_tried_again(plan, tmp_path):
    mine = replace(plan, arms=(KVO,), rates=(1e-3, 1e-2, 1e30))
    losses = tune_rates(mine, tmp_path, QUIET, InProcess())
    assert tuning_table(mine, losses)["rows"][0][-1] == "diverged"
    kept = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("results.json")}
    assert len(kept) == 3
    assert not [*tmp_path.rglob("*.safetensors")]
    assert tune_rates(mine, tmp_path, QUIET, InProcess()) == losses
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("results.json")} == kept


# the study


def told(plan, folder, **options):
    """Run the study; return its results and what it printed."""
    text = StringIO()
    console = Console(file=text, width=2000)
    return run_trial(plan, folder, console, engine=InProcess(), **options), text.getvalue()


def test_all_arms_are_trained_once_under_a_lock(plan, tmp_path):
    with pytest.raises(LockError, match=r"antiphase unchain .* --controls --lock --out"):
        run_trial(plan, tmp_path / "a", QUIET)
    lock_trial(plan, tmp_path / "a")
    records = tmp_path / "runs.jsonl"
    results, said = told(plan, tmp_path / "a", seeds=1, records=records)
    names = [arm.name for arm in ARMS]
    assert "10 arms x 1 seeds = 10 runs of 3 steps, and 30 to choose rates" in said
    assert "120 steps of 64 tokens. About" in said
    assert [row[0] for row in results["table"]["rows"]] == ["base", *names]
    assert [row[0] for row in results["tuning"]["rows"]] == names
    operation = {row[0]: row[-2] != "-" for row in results["table"]["rows"]}
    assert operation == {"base": False, **{arm.name: arm.has_operation for arm in ARMS}}
    assert {v["verdict"] for v in results["verdicts"]} <= {"descriptive", "invalid", "not run"}
    written = (tmp_path / "a" / "controls.md").read_text()
    assert written == as_markdown(results)
    assert "descriptive, without verdicts" in written
    assert f"with seed {TUNING_SEED}" in written
    assert (tmp_path / "a" / "controls.png").stat().st_size > 5_000
    recipes = [load_recipe(str(p)) for p in tmp_path.glob("a/trained/*/recipe.yaml")]
    assert sorted(r.seed for r in recipes) == [SEEDS[0]] * 10 + [TUNING_SEED] * 30
    own = {"method", "method_options", "seed", "lr", "steps"}
    shared = [{k: v for k, v in r.as_dict().items() if k not in own} for r in recipes]
    assert all(fields == shared[0] for fields in shared)
    assert not [*tmp_path.rglob("*.safetensors")]  # no model is kept
    assert len([*tmp_path.glob("a/trained/before-*.json")]) == 1  # the base is measured once
    # nothing is done again
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("results.json")}
    again, said = told(plan, tmp_path / "a", seeds=1, records=records)
    assert again == results
    assert "0 of them to train" in said
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("results.json")} == before
    # on another machine, from the file and the lock
    assert len(records.read_text().splitlines()) == 40
    moved = tmp_path / "b"
    moved.mkdir()
    (moved / "lock.json").write_text((tmp_path / "a" / "lock.json").read_text())
    elsewhere, said = told(plan, moved, seeds=1, records=records)
    assert "40 finished runs taken from" in said
    assert elsewhere == results
    # a lock that is younger than a run, and a plan that is not the locked one
    lock = json.loads((moved / "lock.json").read_text())
    late = {**lock, "time": "2999-01-01T00:00:00+00:00"}
    (moved / "lock.json").write_text(json.dumps(late))
    with pytest.raises(LockError, match="began before it"):
        run_trial(plan, moved, QUIET)
    with pytest.raises(LockError, match="the design has changed since the lock, in: evaluation"):
        run_trial(replace(plan, options=replace(OPTIONS, questions=3)), tmp_path / "a", QUIET)


def test_benchmarks_are_measured_before_and_after(plan, tmp_path, monkeypatch):
    pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness: antiphase[evaluate]")
    from tests.evaluation.small_benchmarks import install_small

    options = replace(OPTIONS, benchmarks=["lambada", "hellaswag"], benchmark_items=3)
    mine = replace(plan, options=options, arms=(KV, HELD), rates=(1e-3,) * 3)
    lock_trial(mine, tmp_path / "study")
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "empty"))
    with pytest.raises(ValueError, match=r"lambada: needs lambada, .* antiphase data benchmarks"):
        run_trial(mine, tmp_path / "study", QUIET, seeds=1, engine=InProcess())
    install_small(tmp_path, monkeypatch)
    results, _ = told(mine, tmp_path / "study", seeds=1)
    assert results["table"]["columns"][3:5] == ["LAMBADA, accuracy", "HellaSwag, accuracy"]
    assert all(cell != "-" for row in results["table"]["rows"] for cell in row[3:5])
    runs = [*(tmp_path / "study" / "trained").glob("*/benchmarks/models/*")]
    assert {path.name.split("-")[0] for path in runs} == {"after"}
    assert len([*(tmp_path / "study" / "trained" / "benchmarks" / "models").iterdir()]) == 1


KILLED = """
import sys
from pathlib import Path
from rich.console import Console
from antiphase.experiments.dex_trial import run_trial
from antiphase.training import load_recipe
from tests.experiments.small import InProcess
from tests.experiments.test_dex_trial import killed_plan
plan, folder = killed_plan(load_recipe(sys.argv[1])), Path(sys.argv[2])
run_trial(plan, folder, Console(quiet=True), seeds=1, engine=InProcess())
"""


def killed_plan(recipe):
    """Return a study of two arms; the first, which is killed, has two learning rates."""
    arms = (FAST, KV)
    return DexPlan(recipe, OPTIONS, arms, extensions=0)


@pytest.mark.slow  # test_killed_study.py kills a study among the fast tests
def test_killed_and_resumed_the_end_is_the_same(plan, tmp_path):
    recipe = plan.recipe.changed(steps=40, checkpoint_every=5)
    mine, folder = killed_plan(recipe), tmp_path / "killed"
    (tmp_path / "recipe.yaml").write_text(recipe.as_yaml())
    for place in (folder, tmp_path / "complete"):
        lock_trial(mine, place)
    complete, _ = told(mine, tmp_path / "complete", seeds=1)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "recipe.yaml"), str(folder)]
    # while rates are tried; in the middle of a run
    for moment in ("*-790-*/results.json", "*-700-*/checkpoints/checkpoint-10/manifest.json"):
        process = subprocess.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[2],
        )
        while not [*(folder / "trained").glob(moment)]:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        done = {p: p.stat().st_mtime_ns for p in folder.rglob("results.json")}
    results, _ = told(mine, folder, seeds=1)
    now = {p: p.stat().st_mtime_ns for p in folder.rglob("results.json")}
    assert {p: now[p] for p in done} == done
    assert len(now) == 6 + 2 > len(done) > 0
    for name in ("table", "against_kv_only", "effects", "verdicts", "tuning"):
        assert results[name] == complete[name], name


# the command


def test_the_plan_of_the_command():
    plan = trial_plan(["method_options.fraction=0.25", "evaluation.questions=5"], start="smollm2")
    assert plan.recipe.task_options["text"] == ["prose"]
    assert (plan.recipe.steps, plan.recipe.method_options) == (300, {"fraction": 0.25})
    assert plan.options.benchmarks == ["needle", "squad2", "lambada", "hellaswag"]
    assert plan.options.questions == 5
    assert plan.first_rates == (2e-4, 4e-4, 8e-4)
    held = plan.recipe_of(HELD, 1e-3, 700)
    assert held.method_options == {
        "fraction": 0.25,
        "train": "kv",
        "anneal": 100,
        "lam": "held",
        "zero_start": True,
        "operation_lr_factor": 3.0,
    }
    assert plan.recipe_of(KV, 1e-3, 700).method_options == {}
    with pytest.raises(ValueError, match="steps: got 200, expected at least 300: annealing takes"):
        trial_plan([], start="smollm2", steps=200)
    with pytest.raises(ValueError, match=r"method_options\.heads: the arms of --controls differ"):
        trial_plan(["method_options.heads=all"], start="smollm2")


def test_the_command_locks(plan, tmp_path):
    text = plan.recipe.task_options["text"][0]
    arguments = ["unchain", plan.recipe.start, "--controls", "--text", text, "--out", str(tmp_path)]
    missing = invoke(*arguments)
    assert missing.exit_code == 2
    assert "has no lock.json; lock the predictions before the first run" in missing.stderr
    locked = invoke(*arguments, "--lock", "--json")
    assert locked.exit_code == 0, locked.stderr
    assert json.loads(locked.stdout)["seeds"] == [*SEEDS]
    changed = invoke(*arguments, "--steps", "400")
    assert changed.exit_code == 2
    assert "the design has changed since the lock, in: recipe" in changed.stderr
    many = invoke(*arguments, "--seeds", "6")
    assert many.exit_code == 2
    assert "--seeds: got 6, the study has 5 locked ones" in many.stderr
    alone = invoke("unchain", plan.recipe.start, "--lock")
    assert alone.exit_code == 2
    assert "--lock: needs --controls" in alone.stderr


def test_the_command_continues_from_the_repository(plan, tmp_path, monkeypatch):
    """The lock comes from docs/results/unchain, and finished runs go there."""
    monkeypatch.chdir(tmp_path)
    started = {}
    monkeypatch.setattr(
        dex_trial, "run_trial", lambda *args, records, **rest: started.update(records=records)
    )
    monkeypatch.setattr("antiphase.cli.unchain._show_controls", lambda *args: None)
    text = str(Path(plan.recipe.task_options["text"][0]).absolute())
    arguments = ["unchain", plan.recipe.start, "--controls", "--text", text]
    missing = invoke(*arguments, "--resume", "--out", "study")
    assert missing.exit_code == 2
    assert "run in the root of a checkout" in missing.stderr
    both = invoke(*arguments, "--resume", "--records", "runs.jsonl")
    assert both.exit_code == 2
    assert "leave out the others" in both.stderr
    lock_trial(plan, dex_trial.REPOSITORY)
    found = invoke(*arguments, "--resume", "--out", "study")
    assert found.exit_code == 0, found.stderr
    assert started == {"records": dex_trial.REPOSITORY / "runs.jsonl"}
    locks = [folder / "lock.json" for folder in (Path("study"), dex_trial.REPOSITORY)]
    assert locks[0].read_text() == locks[1].read_text()
