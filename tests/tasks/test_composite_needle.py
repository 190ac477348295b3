"""Needles with keys of several tokens: which distractors share how much of a key."""

import numpy as np
import pytest

from antiphase.analysis.ground_truth import ground_truth
from antiphase.tasks import Role, task

N = 60
SETTINGS = [
    {},
    {"near": 1.0, "noise": 1.0, "keys": 3},
    {"near": 0.5, "repeats": 2, "needles": 3, "length": 65},
    {"near": 1.0, "noise": 1.0, "key_tokens": 3, "keys": 2, "needles": 5, "queried": 2},
]
each = pytest.mark.parametrize("options", SETTINGS, ids=str)


def of_options(options):
    dataset = task("composite_needle")(size=N, **options)
    return dataset, dataset.examples(range(N))


def slots_of(dataset, tokens, roles, kind):
    """Return the slots of a sequence that begin with a role, each a list of tokens."""
    options = dataset.options
    w = options.slot_tokens
    stop = dataset.length - w * options.queried
    starts = range(stop - w * options.slots, stop, w)
    return [tuple(tokens[s : s + w].tolist()) for s in starts if roles[s] == kind]


def places(dataset, key):
    """Return the tokens of a key, counted from the first token of their place."""
    return [t - dataset.first_key - i * dataset.place_size for i, t in enumerate(key)]


def is_decoy(dataset, key):
    return [place >= dataset.options.keys for place in places(dataset, key)]


@each
def test_distractors_are_near_or_far_and_never_a_needle(options):
    dataset, batch = of_options(options)
    near, every = 0, 0
    for tokens, roles in zip(batch.tokens, batch.roles, strict=True):
        needles = {slot[:-1] for slot in slots_of(dataset, tokens, roles, Role.KEY)}
        assert len(needles) == dataset.options.needles
        assert not any(any(is_decoy(dataset, key)) for key in needles)
        for *key, _ in slots_of(dataset, tokens, roles, Role.NOISE):
            every += 1
            if all(is_decoy(dataset, key)):
                continue
            near += 1
            others = [sum(a != b for a, b in zip(key, n, strict=True)) for n in needles]
            assert min(others) == 1  # one token away from a needle, and none at 0
            assert not any(is_decoy(dataset, key))
    assert every == N * round(
        dataset.options.noise
        * (dataset.options.slots - dataset.options.needles * (1 + dataset.options.repeats))
    )
    wanted = dataset.options.near
    # a near key that would be another needle's is replaced by a far one
    assert near == 0 if wanted == 0 else 0.2 * wanted < near / every <= wanted + 0.1


def test_all_distractors_are_near_where_keys_are_plenty():
    dataset, batch = of_options({"near": 1.0, "noise": 1.0, "keys": 32, "length": 97})
    for tokens, roles in zip(batch.tokens, batch.roles, strict=True):
        keys = [slot[:-1] for slot in slots_of(dataset, tokens, roles, Role.NOISE)]
        far = sum(all(is_decoy(dataset, key)) for key in keys)
        assert far / len(keys) < 0.2


@each
def test_slots_have_roles_numbers_and_tokens_of_their_places(options):
    dataset, batch = of_options(options)
    w, queried = dataset.options.slot_tokens, dataset.options.queried
    assert (batch.roles[:, 0] == Role.SINK).all()
    for tokens, roles, needle in zip(batch.tokens, batch.roles, batch.needle, strict=True):
        for row in range(queried):  # the queries at the end
            start = dataset.length - w * (queried - row)
            assert list(roles[start : start + w]) == [Role.QUERY] * (w - 1) + [Role.TARGET]
            number = needle[start]
            assert (needle[start : start + w] == number).all()
            found = np.flatnonzero((needle == number) & (roles == Role.KEY))
            assert list(found) == list(range(found[0], found[0] + w - 1))
            assert roles[found[-1] + 1] == Role.ANSWER
            assert (tokens[found[0] : found[0] + w] == tokens[start : start + w]).all()
        for kind in (Role.KEY, Role.QUERY, Role.NOISE):
            for *key, value in slots_of(dataset, tokens, roles, kind):
                assert all(0 <= p < dataset.place_size for p in places(dataset, key))
                assert dataset.first_value <= value < dataset.vocab_size
        assert (needle[(roles == Role.NOISE) | (roles == Role.HAYSTACK)] == -1).all()
        assert set(needle[roles == Role.KEY]) == set(range(dataset.options.needles))


@each
def test_a_queried_key_has_one_value(options):
    dataset, batch = of_options(options)
    w = dataset.options.slot_tokens
    for tokens in batch.tokens:
        *key, answer = tokens[-w:]
        here = [i for i in range(len(tokens) - w + 1) if list(tokens[i : i + w - 1]) == key]
        assert {tokens[i + w - 1] for i in here} == {answer}
        assert len(here) == 2 + dataset.options.repeats  # the needle, its repeats, the query


@each
def test_relevant_and_own_positions_of_the_last_query(options):
    dataset, batch = of_options(options)
    w, repeats = dataset.options.slot_tokens, dataset.options.repeats
    truth = ground_truth(batch, last=1)
    assert (truth.rows == dataset.length - 2).all()
    assert (truth.relevant.sum(-1) == w * (1 + repeats)).all()  # every occurrence: key and value
    own = truth.own[:, 0].numpy()
    assert (own.sum(-1) == w - 1).all()
    assert own[:, -w:-1].all()
    query = batch.tokens[:, -w:]
    for i, relevant in enumerate(truth.relevant[:, 0].numpy()):
        tokens = batch.tokens[i][relevant].reshape(-1, w)
        assert (tokens == query[i]).all()
    together = truth.relevant | truth.sink | truth.irrelevant | truth.own
    assert (together == truth.visible).all()


def test_parts_of_the_queried_key_are_elsewhere():
    """With near distractors no single token of the key identifies the needle."""
    dataset, batch = of_options({"near": 1.0, "noise": 1.0, "length": 97})
    w = dataset.options.slot_tokens
    shared = [
        np.isin(tokens[-w:-1], tokens[roles == Role.NOISE])
        for tokens, roles in zip(batch.tokens, batch.roles, strict=True)
    ]
    assert np.mean(shared) > 0.9
