"""Items of the benchmarks, their scores, and the measures computed from them."""

import math

import numpy as np
import pytest
import yaml

from antiphase.evaluation.benchmark_data import FILES
from antiphase.evaluation.suite import registry
from antiphase.evaluation.suite.answers import exact, f1, normalised
from antiphase.evaluation.suite.registry import BENCHMARKS, find_benchmarks
from tests.evaluation.small_benchmarks import install_small


@pytest.fixture
def small(tmp_path, monkeypatch):
    from antiphase.evaluation.suite.essays import sentences

    install_small(tmp_path, monkeypatch)
    sentences.cache_clear()
    yield
    sentences.cache_clear()


def test_every_benchmark_has_a_task_file_with_the_columns_of_its_measures():
    from pathlib import Path

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))
    folder = Path(registry.__file__).parent
    assert {p.stem for p in folder.glob("*.yaml")} == set(BENCHMARKS)
    for benchmark in BENCHMARKS.values():
        assert set(benchmark.files) <= set(FILES)
        with (folder / f"{benchmark.name}.yaml").open() as file:
            task = yaml.load(file, Loader)
        assert task["task"] == f"antiphase_{benchmark.name}"
        listed = {metric["metric"]: metric["higher_is_better"] for metric in task["metric_list"]}
        for measure in benchmark.measures:
            for column in measure.columns:
                metric = "bits_per_byte" if column.startswith("bits_per_byte") else column
                assert metric in listed
            if len(measure.columns) == 1:
                assert listed[measure.columns[0]] == measure.higher_is_better


def test_needles_are_at_their_depth_and_the_haystack_has_its_length(small):
    from antiphase.evaluation.suite.needle import needle_item

    for depth in (0.0, 0.5, 1.0):
        item = needle_item(3, 150, depth)
        haystack, _, question = item["prompt"].partition("\n\n")
        city = question.split(" for ")[1].split("?")[0]
        needle = f"The special number for {city} is{item['answer']}."
        assert haystack.count(needle) == 1
        assert haystack.count("The special number for") == 4
        words = len(haystack.split()) - 4 * len(needle.split())
        assert 130 <= words <= 150
        before = haystack.index(needle) / (len(haystack) - len(needle))
        assert abs(before - depth) < 0.2
        assert item["answer_start"] == f"Answer: The special number for {city} is"
    assert needle_item(3, 150, 0.5) == needle_item(3, 150, 0.5)
    assert needle_item(3, 150, 0.5) != needle_item(4, 150, 0.5)


def test_the_first_items_cover_all_depths_and_lengths(small):
    pytest.importorskip("datasets")
    from antiphase.evaluation.suite.needle import DEPTHS, documents

    items = documents(lengths=[50, 100])["test"]
    cells = [(items[i]["words"], items[i]["depth"]) for i in range(10)]
    assert sorted(cells) == sorted((w, d) for w in (50, 100) for d in DEPTHS)


def test_demonstrations_are_the_same_in_every_order(small):
    pytest.importorskip("datasets")
    from antiphase.evaluation.suite.many_shot import ORDERS, documents

    items = documents(shots=6)["test"]
    for start in range(0, 25, 5):
        group = [items[i] for i in range(start, start + 5)]
        assert [item["condition"] for item in group] == list(ORDERS)
        assert len({item["cluster"] for item in group}) == 1
        *_, question = group[0]["prompt"].split("\n\n")
        shown = [sorted(item["prompt"].split("\n\n")[:-1]) for item in group]
        assert all(demonstrations == shown[0] for demonstrations in shown)
        assert len(shown[0]) == 6
        assert question.splitlines()[0] + "\n" not in "".join(shown[0])  # not among its own shots
    labels = [d.splitlines()[1].split()[1] for d in items[1]["prompt"].split("\n\n")[:-1]]
    assert labels == ["positive"] * 3 + ["negative"] * 3  # negative_last


def test_hotpotqa_asks_with_and_without_distractors(small):
    pytest.importorskip("datasets")
    from antiphase.evaluation.suite.hotpotqa import documents, score_answer

    items = documents()["test"]
    assert len(items) == 6
    assert "Other: Nothing." in items[0]["prompt"]
    assert "Other" not in items[1]["prompt"]
    assert "Number: It is here.\nTown: Oslo is a town." in items[1]["prompt"]
    assert items[0]["cluster"] == items[1]["cluster"] != items[2]["cluster"]
    assert score_answer(items[1], [" Oslo."]) == {"exact_supporting": 1.0, "f1_supporting": 1.0}


def test_squad_scores_answers_refusals_and_hallucinations(small):
    pytest.importorskip("lm_eval")
    from antiphase.evaluation.suite.squad2 import documents, score_answer

    items = documents()["test"]
    assert [item["answerable"] for item in items] == [True, False, True, False]
    answerable = next(item for item in items if "Ada King" in item["answers"])
    assert score_answer(answerable, [" the Ada King.", (-3.0, False)]) == {
        "refusal_loglikelihood": -3.0,
        "answerable": 1.0,
        "exact": 1.0,
        "f1": 1.0,
        "refused": 0.0,
    }
    refused = score_answer(answerable, [" Unanswerable", (-0.1, True)])
    assert (refused["refused"], refused["exact"]) == (1.0, 0.0)
    assert score_answer(items[1], [" 1931", (-2.0, False)])["hallucinated"] == 1.0
    assert score_answer(items[1], [" unanswerable.", (-2.0, False)])["hallucinated"] == 0.0


def test_answers_are_compared_after_normalisation():
    assert normalised(" The  Eiffel-Tower, a tower!") == "eiffeltower tower"
    assert exact("The King.", ["Ada King", "king"]) == 1.0
    assert f1("King Ada", ["Ada King", "1931"]) == 1.0
    assert f1("Ada King the second", ["Ada King"]) == pytest.approx(0.8)
    assert f1("", ["Ada King"]) == 0.0


def test_hallucinations_at_equal_refusal_rates_ignore_a_models_caution():
    rng = np.random.default_rng(0)
    answerable = np.arange(400) % 2
    score = rng.normal(size=400) - answerable  # refusals are likelier where they are right
    rows = np.stack([answerable, score], axis=1)
    shifted = np.stack([answerable, 3 * score + 50], axis=1)  # the same order, more caution
    for rate in registry.REFUSAL_RATES:
        assert registry.hallucinated_at(rate, rows) == registry.hallucinated_at(rate, shifted)
    # by hand: the threshold is -1.75, so one answerable question of four is refused
    small = np.array([[1, -4.0], [1, -3.0], [1, -2.0], [1, -1.0], [0, -0.5], [0, -1.9]])
    assert registry.hallucinated_at(0.25, small) == 0.5
    exactly = np.column_stack([small, [1, 1, 0, 1, math.nan, math.nan]])
    assert registry.exact_at(0.25, exactly) == 0.5
    assert math.isnan(registry.hallucinated_at(0.25, small[:4]))


def test_measures_by_hand():
    nan = math.nan
    assert registry.mean(np.array([[1.0], [nan], [0.0]])) == 0.5
    assert math.isnan(registry.mean(np.array([[nan]])))
    bits = np.array([[-8 * math.log(2), 4], [-4 * math.log(2), 2]])
    assert registry.bits_per_byte(bits) == pytest.approx(2.0)
    orders = np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    assert registry.all_correct(orders) == pytest.approx(1 / 3)
    assert registry.all_equal(orders) == pytest.approx(2 / 3)
    assert registry.spread(orders) == pytest.approx(1 / 3)
    assert registry.drop(orders) == pytest.approx(1 / 3)


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(ValueError, match="hellaswag"):
        find_benchmarks(["helaswag"])
    assert [b.name for b in find_benchmarks(["piqa", "needle", "piqa"])] == ["piqa", "needle"]
