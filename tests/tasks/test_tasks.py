"""Synthetic tasks: reproducible examples, disjoint splits, and correct ground truth."""

import contextlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from antiphase.tasks import IGNORED, TASKS, Role, task

each = pytest.mark.parametrize("name", TASKS)
FIELDS = ("tokens", "labels", "roles", "needle")


def same(a, b):
    return all(np.array_equal(getattr(a, f), getattr(b, f)) for f in FIELDS)


@each
@settings(deadline=None, max_examples=20)
@given(indices=st.lists(st.integers(0, 999), min_size=1, max_size=8), seed=st.integers(0, 3))
def test_an_example_depends_on_its_index_alone(name, indices, seed):
    dataset = task(name)(seed=seed)
    together = dataset.examples(indices)
    for row, index in enumerate(indices):
        alone = task(name)(seed=seed, size=2000).examples([index])
        assert all(np.array_equal(getattr(together, f)[row], getattr(alone, f)[0]) for f in FIELDS)


@each
def test_seeds_and_splits_give_other_examples(name):
    first = task(name)().examples(range(50))
    for other in (task(name)(seed=1), task(name)(split="validation"), task(name)(split="test")):
        assert not (other.examples(range(50)).tokens == first.tokens).all(1).any()


@pytest.mark.parametrize("name", ["needle", "arithmetic"])
def test_splits_are_disjoint_even_where_sequences_are_few(name):
    few = {
        "needle": {"length": 8, "keys": 2, "values": 3, "fillers": 2, "decoys": 1, "needles": 1},
        "arithmetic": {"length": 16, "steps": 1, "others": 1, "variables": 3, "modulus": 2},
    }[name]
    found = {}
    for split in ("train", "validation", "test"):
        for seed in (0, 1):
            tokens = task(name)(split=split, seed=seed, size=400, **few).examples(range(400)).tokens
            found.setdefault(split, set()).update(map(bytes, tokens))
    assert len(found["train"]) < 200  # the same sequences are repeated
    assert not found["train"] & found["validation"]
    assert not found["train"] & found["test"]
    assert not found["validation"] & found["test"]


@each
def test_ground_truth_is_correct(name):
    dataset = task(name)(size=200)
    batch = dataset.examples(range(200))
    assert batch.tokens.shape == (200, dataset.length)
    assert batch.tokens.max() < dataset.vocab_size
    assert (batch.roles[:, 0] == Role.SINK).all()
    is_target = batch.labels != IGNORED
    assert (is_target == (batch.roles == Role.TARGET)).all()
    assert (batch.labels[is_target] == batch.tokens[is_target]).all()
    assert is_target.any(axis=1).all()
    if name == "arithmetic":
        return
    refusal = getattr(dataset, "refusal", -1)
    for row, column in zip(*np.nonzero(is_target), strict=True):
        if batch.tokens[row, column] == refusal:
            assert batch.needle[row, column] == -1
            continue
        mine = (batch.needle[row] == batch.needle[row, column]) & (batch.roles[row] == Role.ANSWER)
        assert mine[:column].any()  # the answer occurred earlier
        assert (batch.tokens[row][mine] == batch.tokens[row, column]).all()


@pytest.mark.parametrize("asked", [1, 5, 12])
def test_arithmetic_answers_are_computed_by_hand(asked):
    dataset = task("arithmetic")(length=120, steps=4, others=2, asked=asked, size=50)
    for tokens in dataset.examples(range(50)).tokens:
        strings = [dataset.id_to_token[t] for t in tokens if t > 1]
        values = {}
        text = " ".join(strings)
        *statements, questions = text.split(" ; ")
        for statement in statements:
            left, _, right = statement.partition(" = ")
            parts = right.split(" + ")
            values[left] = sum(values.get(p, int(p) if p.isdigit() else 0) for p in parts) % 10
        pairs = [question.split() for question in questions.removeprefix("? ").split(" ? ")]
        assert len({variable for variable, _ in pairs}) == asked  # each is asked for once
        assert all(values[variable] == int(answer) for variable, answer in pairs)


def test_recall_with_replacement_queries_pairs_again():
    dataset = task("recall")(length=64, pairs=4, queries=12, replacement=True, size=40)
    batch = dataset.examples(range(40))
    queries = batch.roles == Role.QUERY
    assert (queries.sum(1) == 12).all()
    for tokens, roles in zip(batch.tokens, batch.roles, strict=True):
        pairs = dict(zip(tokens[roles == Role.KEY], tokens[roles == Role.ANSWER], strict=True))
        asked, answers = tokens[roles == Role.QUERY], tokens[roles == Role.TARGET]
        assert [pairs[key] for key in asked] == answers.tolist()
    with pytest.raises(ValueError, match="queries, pairs, keys: got 12, 4, 32"):
        task("recall")(length=64, pairs=4, queries=12)


def test_noise_depth_and_repeats_do_what_they_promise():
    dataset = task("needle")(length=201, needles=5, queried=2, noise=0.25, depth=0.5, size=40)
    batch = dataset.examples(range(40))
    slots = dataset.options.slots
    assert ((batch.roles == Role.NOISE).sum(1) == 2 * round(0.25 * (slots - 5))).all()
    key = np.argmax((batch.roles == Role.KEY) & (batch.needle == batch.needle[:, -4:-3]), axis=1)
    assert (np.abs(key / 201 - 0.5) < 0.02).all()  # the needle that is queried first
    again = task("needle")(length=64, needles=3, keys=8, repeats=4, size=40).examples(range(40))
    assert ((again.roles == Role.TARGET).sum(1) == 3 * 4 + 1).all()
    assert ((again.roles == Role.KEY).sum(1) == 3).all()
    for near in (0.0, 0.5, 1.0):
        dataset = task("needle")(near=near, noise=1.0, size=40)
        batch = dataset.examples(range(40))
        keys = batch.tokens[batch.roles == Role.NOISE][::2]
        fraction = np.isin(keys, range(dataset.first_key, dataset.first_value)).mean()
        assert fraction == near if near in (0, 1) else abs(fraction - near) < 0.05
        queried = batch.tokens[:, -2:-1]
        noise = np.where(batch.roles == Role.NOISE, batch.tokens, -1)
        assert (noise != queried).all()  # no distractor has the queried key


def test_equal_options_of_other_types_give_equal_examples():
    one, two = task("needle")(noise=1, length=np.int64(32)), task("needle")(noise=1.0, length=32)
    assert (one.examples(range(5)).tokens == two.examples(range(5)).tokens).all()


@pytest.mark.parametrize("options", [{}, {"near": 1.0, "noise": 1.0, "keys": 6}])
def test_absent_keys_are_absent(options):
    dataset = task("unanswerable")(size=300, absent=0.4, **options)
    batch = dataset.examples(range(300))
    refused = batch.tokens[:, -1] == dataset.refusal
    assert 0.3 < refused.mean() < 0.5
    for tokens, none in zip(batch.tokens, refused, strict=True):
        assert (tokens[-2] in tokens[:-2]) != none


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("needle", {"noise": 0.5, "near": 0.5}),
        ("needle", {"queried": 2, "length": 65}),
        ("composite_needle", {"near": 1.0}),
        ("unanswerable", {}),
    ],
)
def test_order_permutes_the_slots_of_the_same_sequence(name, options):
    orders = [
        task(name)(order=k, size=30, split="test", **options).examples(range(30)) for k in range(3)
    ]
    drawn, dataset = orders[0], task(name)(**options)
    w, R = dataset.options.slot_tokens, dataset.options.queried
    S = dataset.options.slots
    stop = dataset.length - w * R
    start = stop - w * S

    def slots(batch, i):
        fields = (batch.tokens, batch.roles, batch.needle, batch.labels)
        rows = np.stack([field[i, start:stop].reshape(S, w) for field in fields], axis=-1)
        return sorted(map(tuple, rows.reshape(S, -1).tolist()))

    for other in orders[1:]:
        assert all(slots(other, i) == slots(drawn, i) for i in range(30))
        assert (other.tokens[:, stop:] == drawn.tokens[:, stop:]).all()  # the queries stay
        assert (other.labels[:, stop:] == drawn.labels[:, stop:]).all()
        assert not (other.tokens == drawn.tokens).all(1).any()
    one = task(name)(order=2, size=30, split="test", **options).examples([7])
    assert (one.tokens[0] == orders[2].tokens[7]).all()  # whatever it is drawn with


@pytest.mark.parametrize("other", [{"repeats": 1}, {"depth": 0.5}])
def test_an_order_needs_needles_that_may_move(other):
    with pytest.raises(ValueError, match=r"order: got 1, but other orders .* need repeats=0"):
        task("needle")(order=1, **other)


def test_order_permutes_the_same_shots():
    orders = [task("many_shot")(order=k, size=30).examples(range(30)) for k in range(3)]
    for other in orders[1:]:
        assert (np.sort(other.tokens, 1) == np.sort(orders[0].tokens, 1)).all()
        assert (other.tokens[:, -3:] == orders[0].tokens[:, -3:]).all()  # the query stays
        assert not (other.tokens == orders[0].tokens).all(1).any()


@each
def test_a_dataloader_gives_batches(name):
    dataset = task(name)(size=10)
    batches = list(DataLoader(dataset, batch_size=4))
    assert [len(b["input_ids"]) for b in batches] == [4, 4, 2]
    assert torch.equal(batches[1]["input_ids"][1], dataset[5]["input_ids"])
    with pytest.raises(IndexError, match="has 10 examples, got index 10"):
        dataset[10]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("needle", {"length": 64.5}, "length: got 64.5, expected a whole number"),
        ("needle", {"needles": True}, "needles: got True, expected a whole number"),
        ("needle", {"noise": None}, "noise: got None, expected a number"),
        ("needle", {"decoys": 0}, "decoys: got 0 with near=0.0"),
        ("needle", {"noise": 1.5}, "noise: got 1.5, expected 0 to 1"),
        ("needle", {"queried": 9}, "queried: got 9, expected 1 to needles=4"),
        ("needle", {"needles": 40}, "needles: got 40 of keys=16"),
        ("needle", {"length": 10}, "tokens have 3 slots, fewer than the 4 of needles=4"),
        ("needle", {"depth": 0.5, "repeats": 1}, "depth: places the needle, and repeats scatter"),
        ("needle", {"hay": 3}, "'needle' has no option 'hay'; its options are length, keys"),
        ("needle", {"split": "dev"}, "split: got 'dev', allowed are train, validation, test"),
        ("needle", {"size": 0}, "size: got 0"),
        ("composite_needle", {"key_tokens": 1}, "key_tokens: got 1, expected 2 to 26"),
        ("composite_needle", {"key_tokens": 27}, "keys of one token are the task 'needle'"),
        ("composite_needle", {"keys": 1}, "keys, decoys: got 1, 16, expected at least 2 and 1"),
        ("composite_needle", {"decoys": 0}, "keys, decoys: got 16, 0, expected at least 2 and 1"),
        ("composite_needle", {"keys": 2}, "needles: got 4 of 4 keys; each needle needs its own"),
        ("composite_needle", {"length": 13}, "tokens have 3 slots, fewer than the 4 of needles=4"),
        ("needle", {"key_tokens": 2}, "'needle' has no option 'key_tokens'"),
        ("recall", {"pairs": 40}, "expected 1 <= queries <= pairs <= keys"),
        ("recall", {"length": 20}, "tokens leave 1 slots after 8 pairs"),
        ("many_shot", {"classes": 1}, "classes: got 1, expected 2 to labels=16"),
        ("many_shot", {"length": 12}, "hold 3 shots"),
        ("unanswerable", {"absent": -1}, "absent: got -1"),
        ("unanswerable", {"queried": 2}, "an unanswerable sequence has one query"),
        ("arithmetic", {"variables": 4}, "variables: 4 are fewer than the 9 statements"),
        ("arithmetic", {"length": 30}, "length: 30 tokens are fewer than the 58"),
        ("arithmetic", {"asked": 10, "length": 100}, "asked: got 10, expected 1 to the 9 variab"),
        ("arithmetic", {"length": -4}, "length: got -4, expected 0 or more"),
    ],
)
def test_invalid_options_say_what_to_change(name, options, message):
    with pytest.raises(ValueError, match=message):
        task(name)(**options)


def test_unknown_tasks_and_too_few_sequences_raise():
    with pytest.raises(
        ValueError, match="task: got 'hay', allowed are needle, composite_needle, recall"
    ):
        task("hay")
    two = {
        "length": 8,
        "keys": 1,
        "values": 2,
        "fillers": 1,
        "needles": 1,
        "depth": 0.0,
        "noise": 0,
    }
    dataset = [task("needle")(split=split, **two) for split in ("train", "validation", "test")]
    failing = []
    for one in dataset:  # two sequences cannot fill three splits
        with contextlib.suppress(ValueError):
            one.examples(range(5))
            continue
        failing.append(one)
    assert failing
    with pytest.raises(ValueError, match="leave too few different sequences"):
        failing[0].examples(range(5))


def test_the_registry_names_its_classes():
    for name, entry in TASKS.items():
        assert task(name).name == name
        assert task(name).__name__ == entry.class_name
        assert entry.summary


def test_the_registry_is_imported_without_torch():
    code = (
        "import sys; from antiphase.tasks.registry import TASKS; assert TASKS; print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "numpy", "transformers"} & set(loaded)
