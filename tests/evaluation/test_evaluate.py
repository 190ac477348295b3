"""Evaluation with lm-evaluation-harness: scores, resuming, comparison, the command."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness: antiphase[evaluate]")

from antiphase.evaluation import suite
from antiphase.evaluation.evaluate import EvaluationOptions, common_rows, evaluate_model
from antiphase.evaluation.report import summarise, table_columns, table_rows, write_report
from antiphase.evaluation.suite.essays import sentences
from antiphase.evaluation.suite.registry import BENCHMARKS
from antiphase.evaluation.suite.requests import arc_easy, lambada
from tests.cli.runner import invoke
from tests.evaluation.small_benchmarks import install_small, save_byte_model


@pytest.fixture
def small(tmp_path, monkeypatch):
    install_small(tmp_path, monkeypatch)
    sentences.cache_clear()
    yield tmp_path
    sentences.cache_clear()


def by_hand(model, tokenizer, prompt, answer):
    """Return the log-likelihood of an answer, and whether it is the greedy continuation."""
    before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    ids = torch.tensor([tokenizer(prompt + answer, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(before) - 1 : -1]
    targets = ids[0, len(before) :]
    chosen = logits.log_softmax(-1).gather(1, targets[:, None])
    return float(chosen.sum()), bool((logits.argmax(-1) == targets).all())


def test_log_likelihoods_are_those_computed_by_hand(small):
    model, tokenizer = save_byte_model(small / "model")
    options = EvaluationOptions(tasks=["lambada", "arc_easy"], limit=3)
    found = evaluate_model(model, tokenizer, "tiny", options, small / "out", quiet=True)
    items = lambada()["test"]
    for i, item in enumerate(found.tasks["lambada"].items):
        expected, greedy = by_hand(model, tokenizer, items[i]["prompt"], items[i]["answer"])
        assert item["scores"]["bits_per_byte_loglikelihood"] == pytest.approx(expected, abs=1e-4)
        assert item["scores"]["bits_per_byte_bytes"] == 2
        assert item["scores"]["acc"] == greedy
    questions = arc_easy()["test"]
    for i, item in enumerate(found.tasks["arc_easy"].items):
        question = questions[i]
        scores = [
            by_hand(model, tokenizer, question["prompt"], f" {choice}")[0]
            for choice in question["choices"]
        ]
        assert item["scores"]["acc"] == (int(np.argmax(scores)) == question["gold"])


def test_every_task_runs_and_its_measures_are_numbers(small):
    model, tokenizer = save_byte_model(small / "model")
    options = EvaluationOptions(tasks=list(BENCHMARKS), limit=10, lengths=[40])
    found = evaluate_model(model, tokenizer, "tiny", options, small / "out", quiet=True)
    summary = write_report([found], options, small / "out")
    for task, results in summary["tasks"].items():
        assert results["items"] > 0, task
        assert results["skipped"] == [0]
        for name, measure in results["measures"].items():
            (estimate,) = measure["models"]
            assert np.isfinite(estimate["value"]), (task, name)
            assert not estimate["low"] > estimate["value"]
    bits = summary["tasks"]["essays_bpb"]["measures"]["bits per byte"]["models"][0]["value"]
    assert 7 < bits < 10  # an untrained model of bytes: log2(257), and a little more
    assert len(summary["needle"]["found"][0][0]) == 5
    stored = json.loads((small / "out" / "results.json").read_text())
    assert stored["tasks"].keys() == summary["tasks"].keys()
    assert "| needle | found ↑ |" in (small / "out" / "README.md").read_text()
    assert (small / "out" / "needle.png").stat().st_size > 1000


def test_complete_tasks_are_read_and_more_items_are_added(small):
    model, tokenizer = save_byte_model(small / "model")
    passes = 0

    def count(*_):
        nonlocal passes
        passes += 1

    def run(limit):
        nonlocal passes
        passes = 0
        options = EvaluationOptions(tasks=["lambada"], limit=limit)
        found = evaluate_model(model, tokenizer, "tiny", options, small / "out", quiet=True)
        return passes, found.tasks["lambada"].items

    model.register_forward_pre_hook(count)
    assert run(3)[0] == 3
    assert run(3)[0] == 0
    more, items = run(5)
    assert more == 2
    assert len(items) == 5
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(1.0)
    assert run(5)[0] == 5  # other weights, nothing is taken from the first


def test_a_killed_run_resumes_where_it_was(small):
    model, tokenizer = save_byte_model(small / "model")
    command = [sys.executable, "-m", "tests.evaluation.killed_evaluation"]
    command += [str(small / "model"), str(small / "out"), "6"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    passes = 0

    def count(*_):
        nonlocal passes
        passes += 1

    model.register_forward_pre_hook(count)
    options = EvaluationOptions(tasks=["lambada", "arc_easy"], limit=4)
    resumed = evaluate_model(model, tokenizer, "tiny", options, small / "out", quiet=True)
    assert passes == 4 + 8 - 6
    fresh = evaluate_model(model, tokenizer, "tiny", options, small / "fresh", quiet=True)
    assert resumed.tasks == fresh.tasks


def test_texts_are_stored_one_by_one(small):
    model, tokenizer = save_byte_model(small / "model")
    options = EvaluationOptions(tasks=["essays_bpb"], limit=3)
    passes = 0

    def stop_at_the_third(*_):
        nonlocal passes
        passes += 1
        if passes == 3:
            raise KeyboardInterrupt

    model.register_forward_pre_hook(stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        evaluate_model(model, tokenizer, "tiny", options, small / "out", quiet=True)
    found = evaluate_model(model, tokenizer, "tiny", options, small / "out", quiet=True)
    assert len(found.tasks["essays_bpb"].items) == 3
    assert passes == 4


def test_a_chat_template_ends_with_the_start_of_the_answer(small):
    model, tokenizer = save_byte_model(small / "model")
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    seen = []

    def keep(_, args, kwargs):
        ids = args[0] if args else kwargs["input_ids"]
        seen.append(tokenizer.decode(ids[0]))

    model.register_forward_pre_hook(keep, with_kwargs=True)
    options = EvaluationOptions(tasks=["needle"], limit=1, lengths=[40], chat=True)
    evaluate_model(model, tokenizer, "tiny", options, small / "out", quiet=True)
    end = r"Question: [\w ]+\?\s+\[assistant\] Answer: The special number for \w+ is \d\d$"
    assert seen[0].startswith("[user] ")
    assert re.search(end, seen[0]), seen[0]


def test_items_that_do_not_fit_are_left_out_and_counted(small):
    model, tokenizer = save_byte_model(small / "model", context=700)
    options = EvaluationOptions(tasks=["needle"], limit=20, lengths=[40, 200])
    found = evaluate_model(model, tokenizer, "tiny", options, small / "out", quiet=True)
    assert {item["words"] for item in found.tasks["needle"].items} == {40}
    assert len(found.tasks["needle"].skipped) == 10
    longer = EvaluationOptions(tasks=["needle"], limit=5, lengths=[200])
    with pytest.raises(ValueError, match=r"context of 700 tokens.*shorter --lengths"):
        evaluate_model(model, tokenizer, "tiny", longer, small / "out", quiet=True)


def test_items_that_belong_together_are_kept_or_left_out_together(small):
    model, tokenizer = save_byte_model(small / "model", context=190)
    options = EvaluationOptions(tasks=["hotpotqa"], limit=3)
    found = evaluate_model(model, tokenizer, "long", options, small / "out", quiet=True)
    assert [item["id"] for item in found.tasks["hotpotqa"].items] == [0, 1, 2, 3]  # two questions
    model, tokenizer = save_byte_model(small / "model", context=170)  # without distractors only
    with pytest.raises(ValueError, match="none of 4 items fits"):
        evaluate_model(model, tokenizer, "short", options, small / "out", quiet=True)


def test_two_models_are_compared_on_the_items_that_fit_both(small):
    options = EvaluationOptions(tasks=["needle", "lambada"], limit=20, lengths=[40, 200])
    evaluations = []
    for name, context, seed in (("one", 2048, 0), ("other", 700, 1)):
        model, tokenizer = save_byte_model(small / name, "standard", seed, context)
        evaluations.append(
            evaluate_model(model, tokenizer, name, options, small / "out", quiet=True)
        )
    tables = common_rows(evaluations, "needle")
    assert list(tables[0]) == list(tables[1])
    assert len(tables[0]) == 20 - len(evaluations[1].tasks["needle"].skipped) < 20
    summary = summarise(evaluations, options)
    measure = summary["tasks"]["lambada"]["measures"]["bits per byte"]
    values = [model["value"] for model in measure["models"]]
    assert measure["difference"]["value"] == pytest.approx(values[1] - values[0])
    assert table_columns(summary) == ["task", "measure", "one", "other", "difference", "items"]
    assert all(len(row) == 6 for row in table_rows(summary))


def test_the_command_prints_the_table_and_names_what_is_wrong(small):
    save_byte_model(small / "model")
    common = ["evaluate", str(small / "model"), "--out", str(small / "out")]
    result = invoke(*common, "--tasks", "lambada,piqa", "--limit", "2", "--json")
    assert result.exit_code == 0, result.output
    assert set(json.loads(result.stdout)["tasks"]) == {"lambada", "piqa"}
    for wrong, message in (
        (["--tasks", "lambda"], "lambada"),
        (["--limit", "-1"], "--limit"),
        (["--lengths", "4,x"], "--lengths"),
        (["--dtype", "int8"], "dtype"),
    ):
        failed = invoke(*common, *wrong)
        assert failed.exit_code == 2
        assert message in failed.stderr
    listed = invoke("evaluate", "--list", "--json")
    assert {entry["task"] for entry in json.loads(listed.stdout)} == set(BENCHMARKS)


def test_the_harness_itself_evaluates_a_saved_model_by_its_path(small):
    """`lm_eval` as its users call it: a folder, our task files, nothing imported before."""
    model, tokenizer = save_byte_model(small / "model", "diff_v2")
    command = [sys.executable, "-m", "lm_eval", "--model", "hf", "--device", "cpu"]
    command += ["--model_args", f"pretrained={small / 'model'},trust_remote_code=True"]
    command += ["--include_path", str(Path(suite.__file__).parent)]
    command += ["--tasks", "antiphase_lambada", "--limit", "3", "--log_samples"]
    command += ["--output_path", str(small / "harness")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = (small / "harness").rglob("samples_antiphase_lambada_*.jsonl")
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(samples) == 3
    for sample in samples:
        expected, greedy = by_hand(
            model, tokenizer, sample["doc"]["prompt"], sample["doc"]["answer"]
        )
        loglikelihood, is_greedy = sample["filtered_resps"][0]
        assert float(loglikelihood) == pytest.approx(expected, abs=1e-4)
        assert str(is_greedy) == str(greedy)
