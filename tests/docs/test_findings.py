"""The claims table of docs/findings.md is what the stored results say."""

from dataclasses import replace

import pytest

from antiphase.analysis.statistics import Interval
from antiphase.experiments import e14_dex
from antiphase.experiments.plans import PLANS
from antiphase.experiments.registry import EXPERIMENTS
from antiphase.experiments.results import Result
from antiphase.experiments.study import predictions_of
from tests.docs.pages import script, text


@pytest.fixture(scope="module")
def findings():
    return script("findings")


def test_the_committed_table_is_current(findings):
    assert findings.table() in text("docs/findings.md"), "run python docs/findings.py"


def test_every_claim_finds_its_prediction_once_its_study_has_run(findings, monkeypatch):
    """An effect's name in the table is one that its test predicts, whether it has run or not."""

    def planted(name, number):
        if name == "primary":
            return real(name, number)
        predictions = predictions_of(PLANS[name])[number]
        effects = {e: Interval(0.5, 0.4, 0.6, 8) for p in predictions for e in p.required}
        entry = EXPERIMENTS[number]
        return Result(number, entry.title, entry.question, [*predictions], effects)

    real = findings.result
    monkeypatch.setattr(findings, "result", planted)
    without_norm = f"accuracy: V1 without head norm minus standard, {findings.SYNTHETIC_STRESS}"
    by_sign = findings.signed("synthetic", 25, without_norm, -1)()
    assert by_sign.word == "not tested: a gate failed"  # of this effect: 0.5 is no learned task
    assert "learned failed (0.5)" in by_sign.gates
    words = [claim.find().word for claim in findings.CLAIMS if claim.find is not findings.dex]
    assert "not tested: not run yet" not in words


def test_words_follow_verdicts_and_ranges(findings, monkeypatch):
    entropy = findings.predicted("primary", 5, "entropy: standard minus V1", "sparsity")
    assert entropy().word == "disagrees"
    gini = findings.predicted("primary", 5, "Gini: V1 minus standard", "sparsity")
    assert gini().word.startswith("not tested: ")
    what = "effective rank of the noise map"
    assert findings.within("primary", 13, what, 2, 5)().word == "disagrees"
    assert findings.within("primary", 13, what, 20, 30)().word == "agrees"
    assert findings.within("primary", 13, what, 20, 25)().word == "undecided"
    negative = "negative mass: V1"
    assert findings.signed("primary", 5, negative)().word == "agrees"
    assert findings.signed("primary", 5, negative, -1)().word == "disagrees"
    few = replace(findings.result("primary", 5))
    few.effects = {e: replace(i, seeds=3) for e, i in few.effects.items()}
    monkeypatch.setattr(findings, "result", lambda name, number: few)
    assert entropy().word == "descriptive"


def test_the_claim_about_dex_is_judged_by_its_primary_prediction(findings):
    primary = [p for p in e14_dex.PREDICTIONS if p.primary and p.reading == "claim"]
    assert [str(p.effect) for p in primary] == [findings.DEX_EFFECT]


def test_the_newest_study_that_was_run_decides(findings):
    older, newer = (findings.Found(name, "", "agrees") for name in ("older", "newer"))
    missing = findings.Found("a command", "", findings.NOT_RUN)
    newest = lambda *found: findings.newest(*(lambda f=f: f for f in found))().number  # noqa: E731
    assert newest(newer, older) == "newer"
    assert newest(missing, older) == "older"
    assert newest(missing, missing) == "a command"
