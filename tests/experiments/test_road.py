"""The road: tuned, trained, measured, resumed and shown."""

import io
import math

import pytest
from rich.console import Console

from antiphase.benchmarks.road_costs import road_costs
from antiphase.experiments.arms import Settings, arm_recipe
from antiphase.experiments.road import ARMS, TASKS, RoadResult, as_json, from_json, run_road
from antiphase.experiments.road_page import RESULTS, RoadCost, write_road, write_road_page
from antiphase.models import AntiphaseForCausalLM
from antiphase.training.components import dataset, model_config
from tests.cli.runner import invoke
from tests.experiments.small import InProcess

TINY = {
    name: recipe.changed(steps=4, warmup=1, evaluate_every=2, checkpoint_every=10, batch_size=2)
    for name, recipe in list(TASKS.items())[:1]
}
BY_NAME = {arm.name: arm for arm in ARMS}


def test_mixers_have_equal_parameters():
    counts = {}
    for arm in ARMS:
        recipe = arm_recipe(next(iter(TASKS.values())), arm, Settings(1e-3))
        model = AntiphaseForCausalLM(model_config(recipe, dataset(recipe, "train", 1)))
        counts[arm.name] = sum(p.numel() for p in model.parameters())
    assert max(counts.values()) / min(counts.values()) < 1.01, counts


def test_a_road_is_trained_once_and_measured(tmp_path):
    arms, text = [BY_NAME["GRU"], BY_NAME["standard, 2017"]], io.StringIO()
    options = {"arms": arms, "tasks": TINY, "rates": (1e-3, 1e-5), "seeds": (0, 1)}
    first = run_road(tmp_path, Console(file=text), engine=InProcess(), **options)
    assert "8 runs" in text.getvalue()
    assert [r.arm for r in first] == ["GRU", "standard, 2017"]
    for result in first:
        assert result.lr == result.rates[result.losses.index(min(result.losses))]
        assert len(result.accuracy) == 2
        assert result.steps == [None, None]  # nothing is learned in four steps
    text = io.StringIO()
    again = run_road(tmp_path, Console(file=text), engine=InProcess(), **options)
    assert text.getvalue().count("0 of them to train") == 2
    assert again == first
    # on another machine, from records without weights
    records = tmp_path / "runs.jsonl"
    run_road(tmp_path, Console(file=text), engine=InProcess(), records=records, **options)
    text = io.StringIO()
    moved = run_road(
        tmp_path / "moved", Console(file=text), engine=InProcess(), records=records, **options
    )
    assert "8 finished runs taken from" in text.getvalue()
    assert moved == first


def test_results_survive_as_json_and_a_page_is_written(tmp_path):
    results = [
        RoadResult("GRU", "recall", [1e-3, 1e-2], [2.0, math.inf], 1e-3, [0.2, 0.4], [None, None]),
        RoadResult("V2", "recall", [1e-3, 1e-2], [0.2, 0.1], 1e-2, [0.99, 1.0], [300, 400]),
    ]
    assert from_json(as_json(results)) == results
    costs = [
        RoadCost(arm, n, 1e4 / n, 1e6 * n, 512 * n) for arm in ("GRU", "V2") for n in (64, 128)
    ]
    page, picture = write_road(results, costs, tmp_path)
    text = page.read_text()
    assert picture.stat().st_size > 10_000
    assert "| V2 | 0.995 [0.931, 1.000], 2 of 2 |" in text
    assert "| GRU | 0.300 [0.000, 1.000], 0 of 2 |" in text
    assert "| V2 | 0.01* |" in text
    assert "queries 24, replacement True" in text
    assert "| 16 | 800 | 1,638,400 |" in text
    write_road_page(tmp_path, tmp_path / "copy")
    assert (tmp_path / "copy" / page.name).read_text() == text
    assert "Infinity" not in (tmp_path / RESULTS).read_text()


def test_memory_of_recurrent_mixers_does_not_grow_with_length():
    arms = [BY_NAME["GRU"], BY_NAME["standard"], BY_NAME["grouped latent"]]
    costs = {(c.arm, c.length): c for c in road_costs(arms, (16, 64), rounds=1)}
    assert costs["GRU", 16].decoding_bytes == costs["GRU", 64].decoding_bytes
    assert costs["standard", 64].decoding_bytes == 4 * costs["standard", 16].decoding_bytes
    assert costs["grouped latent", 64].decoding_bytes < costs["standard", 64].decoding_bytes
    assert all(c.tokens_per_second > 0 and c.training_bytes > 0 for c in costs.values())


@pytest.mark.parametrize("other", [["--only", "1"], ["--seeds", "2"], ["--full"]])
def test_the_road_takes_no_options_of_other_studies(other):
    result = invoke("lab", "--road", *other)
    assert result.exit_code != 0
    assert "--road: goes with --out, --records, --resume and --engine only" in result.output
