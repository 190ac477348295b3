"""The models' own KV cache: equal to transformers' and to the full pass, without copying."""

import copy
import random

import pytest
import torch
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
)

from antiphase.attention import MECHANISMS
from antiphase.models import growing_cache
from antiphase.models.growing_cache import GrowingLayer, GrowingSlidingLayer, with_room
from tests.attention.cases import INDEPENDENT, NAMES
from tests.models.tiny import left_padded, model, token_ids

WINDOWED = [n for n in NAMES if not MECHANISMS[n].running_state]
MIXED = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
close = {"atol": 2e-5, "rtol": 1e-4}


@pytest.fixture(autouse=True)
def little_room(monkeypatch):
    """Let the short sequences of these tests grow several times."""
    monkeypatch.setattr(growing_cache, "_LEAST_ROOM", 2)


def spoil(cache):
    """Fill the room of a cache that holds no tokens with NaN."""
    for layer in cache.layers:
        for room in layer._rooms or ():
            start = room.used.storage_offset() // room.memory.stride(2)
            room.memory[:, :, :start] = torch.nan
            room.memory[:, :, start + room.used.shape[2] :] = torch.nan


def decoded(net, ids, ends, mask=None, positions=None, spoiled=True):
    """Return the logits of all tokens in chunks that end at `ends`, with the model's own cache."""
    chunks, start, cache = [], 0, None
    for end in ends:
        out = net(
            ids[:, start:end],
            attention_mask=None if mask is None else mask[:, :end],
            position_ids=None if positions is None else positions[:, start:end],
            past_key_values=cache,
            use_cache=True,
        )
        chunks.append(out.logits)
        cache, start = out.past_key_values, end
        if spoiled:
            spoil(cache)
    return torch.cat(chunks, dim=1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kv_heads", [8, 4], ids=["mha", "gqa"])
@torch.no_grad()
def test_decoding_is_the_full_forward(name, kv_heads):
    net, ids = model(name, num_key_value_heads=kv_heads), token_ids()
    want = net(ids, use_cache=False).logits
    for ends in ([*range(1, 20)], [7, 8, 19], [1, 12, 19]):
        torch.testing.assert_close(decoded(net, ids, ends), want, **close)


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("window", [1, 4, 40])
@torch.no_grad()
def test_decoding_with_windows_is_the_full_forward(name, window):
    net, ids = model(name, **{**MIXED, "sliding_window": window}), token_ids()
    want = net(ids, use_cache=False).logits
    for ends in ([*range(1, 20)], [7, 8, 19], [2, 4, 5, 6, 8, 19]):
        torch.testing.assert_close(decoded(net, ids, ends), want, **close)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_decoding_of_a_padded_batch(name):
    net = model(name)
    ids, mask = left_padded(token_ids(), [19, 11, 5])
    want = net(ids, attention_mask=mask, use_cache=False).logits
    got = decoded(net, ids, [6, 7, 8, 9, 15, 19], mask)
    torch.testing.assert_close(got[mask.bool()], want[mask.bool()], **close)


@pytest.mark.parametrize("name", INDEPENDENT)
@torch.no_grad()
def test_decoding_of_packed_sequences(name):
    net, ids = model(name).double(), token_ids(1, 19)
    positions = torch.tensor([[*range(6), *range(9), *range(4)]])
    want = torch.cat(
        [net(ids[:, a:b], use_cache=False).logits for a, b in ((0, 6), (6, 15), (15, 19))], 1
    )
    got = decoded(net, ids, [5, 6, 8, 17, 18, 19], positions=positions)
    torch.testing.assert_close(got, want, atol=1e-9, rtol=1e-9)


@torch.no_grad()
def test_tokens_are_written_in_place_and_memory_is_bounded():
    cache = with_room(DynamicCache())
    cache.layers.append(GrowingLayer())
    layer, moves, address = cache.layers[0], 0, None
    for T in range(1, 600):
        k = torch.randn(2, 3, 1, 8)
        keys, values = layer.update(k, -k)
        assert keys.shape == values.shape == (2, 3, T, 8)
        room = layer._rooms[0].memory
        assert room.shape[2] <= 1.5 * T + 2
        moves += room.data_ptr() != address
        address = room.data_ptr()
    assert moves <= 16


@torch.no_grad()
def test_a_window_keeps_no_long_prompt():
    net = model("diff_v1", **MIXED)
    cache = net(token_ids(2, 19)).past_key_values
    sliding, full = cache.layers
    assert isinstance(sliding, GrowingSlidingLayer)
    assert isinstance(full, GrowingLayer)
    assert [layer.keys.shape[2] for layer in cache.layers] == [3, 19]
    assert sliding.keys.untyped_storage().nbytes() == sliding.keys.nbytes
    for _ in range(20):
        net(token_ids(2, 1), past_key_values=cache)
        assert sliding._rooms[0].memory.shape[2] <= 1.5 * 4 + 2


def layers(kind):
    """Return a cache of transformers, and one with room, of two equal layers."""
    window = {"sliding_window": 5} if kind is DynamicSlidingWindowLayer else {}
    caches = DynamicCache(), DynamicCache()
    for cache in caches:
        cache.layers += [kind(**window), kind(**window)]
    return caches[0], with_room(caches[1])


def random_step(step, B, T, past):
    """Return one operation on a cache, as a function, and the batch size after it."""
    kind = step.choice(["append"] * 4 + ["reorder", "select", "repeat", "crop", "copy"])
    if kind == "append" or not T:
        n = step.choice([1, 1, 1, 2, 9])
        k, v = torch.randn(2, 3, n, 4), torch.randn(2, 3, n, 6)
        rows = torch.arange(B) % 2
        return lambda c: [c.update(k[rows] + i, v[rows], i) for i in (0, 1)], B, T + n
    rows = torch.tensor(step.choices(range(B), k=B))
    if kind == "reorder":
        return lambda c: c.reorder_cache(rows), B, T
    if kind == "select":
        return lambda c: c.batch_select_indices(rows[:2]), len(rows[:2]), T
    if kind == "repeat" and B < 4:
        return lambda c: c.batch_repeat_interleave(2), 2 * B, T
    if kind == "crop" and past:
        n = step.randint(0, T)
        return lambda c: c.crop(-n), B, T - n
    return lambda c: setattr(c, "layers", copy.deepcopy(c.layers)), B, T


@pytest.mark.parametrize("kind", [DynamicLayer, DynamicSlidingWindowLayer])
@pytest.mark.parametrize("seed", range(20))
@torch.no_grad()
def test_any_sequence_of_operations_gives_what_transformers_gives(kind, seed):
    step, caches = random.Random(seed), layers(kind)
    torch.manual_seed(seed)
    B, T = 2, 0
    for _ in range(60):
        operation, B, T = random_step(step, B, T, past=kind is DynamicLayer)
        want, got = (operation(cache) for cache in caches)
        torch.testing.assert_close(got, want, atol=0, rtol=0)
        assert caches[0].get_seq_length() == caches[1].get_seq_length() == T
        for want, got in zip(caches[0].layers, caches[1].layers, strict=True):
            if T and (kind is DynamicLayer or want.sliding_window > 1):
                torch.testing.assert_close((got.keys, got.values), (want.keys, want.values))


@torch.no_grad()
def test_tokens_after_a_crop_are_written_in_place():
    net, ids = model("diff_v1"), token_ids(1)
    cache = net(ids[:, :9]).past_key_values
    net(token_ids(1, 3, seed=5), past_key_values=cache)
    address = cache.layers[0]._rooms[0].memory.data_ptr()
    cache.crop(-3)
    got = net(ids[:, 9:12], past_key_values=cache).logits
    assert cache.layers[0]._rooms[0].memory.data_ptr() == address
    torch.testing.assert_close(got, net(ids[:, :12], use_cache=False).logits[:, 9:], **close)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
@torch.no_grad()
def test_copies_of_a_layer_do_not_share_what_comes_after(duplicate):
    layer = GrowingLayer()
    layer.update(torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 2, 1))
    other = duplicate(layer)
    for value in (1.0, 2.0):
        layer.update(*[torch.full((1, 1, 1, 1), value)] * 2)
        other.update(*[torch.full((1, 1, 1, 1), -value)] * 2)
    assert layer.keys.flatten().tolist() == [0, 0, 1, 2]
    assert other.values.flatten().tolist() == [0, 0, -1, -2]


@torch.no_grad()
def test_restored_keys_do_not_overwrite_a_branch():
    layer = GrowingLayer()
    token = torch.ones(1, 1, 1, 1)
    start = layer.update(0 * token, 0 * token)
    branch = layer.update(1 * token, 1 * token)
    layer.keys, layer.values = start
    layer.update(2 * token, 2 * token)
    assert branch[0].flatten().tolist() == [0, 1]
    assert layer.keys.flatten().tolist() == [0, 2]


def test_a_tensor_that_does_not_fit_is_treated_as_transformers_does():
    with torch.no_grad():
        layer = GrowingLayer()
        layer.update(torch.zeros(3, 1, 2, 4), torch.zeros(3, 1, 2, 4))
        with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
            layer.update(torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4))
        new = torch.ones(3, 1, 1, 4, dtype=torch.float64)
        assert layer.update(new, new)[0].dtype == torch.float64
        assert layer.update(new, new)[0].shape == (3, 1, 4, 4)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_through_the_cache(name):
    net, ids = model(name), token_ids()
    if MECHANISMS[name].running_state:
        pytest.skip("transformers stores a running state in place, which has no gradient")
    wanted = torch.autograd.grad(net(ids, use_cache=False).logits.square().sum(), net.parameters())
    got = decoded(net, ids, [5, 6, 7, 19], spoiled=False).square().sum()
    found = torch.autograd.grad(got, net.parameters())
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)


def test_decoding_does_not_change_what_a_pending_backward_needs():
    net, ids = model("diff_v1", **MIXED), token_ids()
    with torch.no_grad():
        cache = net(ids[:, :6]).past_key_values
    reference = copy.deepcopy(cache)
    logits = net(ids[:, 6:9], past_key_values=cache).logits
    with torch.no_grad():
        for t in range(9, 14):
            net(ids[:, t : t + 1], past_key_values=cache)
    found = torch.autograd.grad(logits.sum(), net.parameters())
    logits = net(ids[:, 6:9], past_key_values=reference).logits
    torch.testing.assert_close(found, torch.autograd.grad(logits.sum(), net.parameters()))


def test_a_cache_from_inference_mode_continues_outside_of_it():
    net, ids = model("diff_v2"), token_ids()
    with torch.inference_mode():
        cache = net(ids[:, :6]).past_key_values
        net(ids[:, 6:7], past_key_values=cache)
    with torch.no_grad():
        want = net(ids, use_cache=False).logits
        got = net(ids[:, 7:8], past_key_values=cache).logits
        torch.testing.assert_close(got[:, 0], want[:, 7], **close)
    with torch.inference_mode():
        got = net(ids[:, 8:9], past_key_values=cache).logits
        torch.testing.assert_close(got[:, 0], want[:, 8], **close)


@torch.no_grad()
def test_a_compiled_step_continues_an_eager_cache():
    torch._dynamo.reset()
    net, ids = model("diff_v1"), token_ids()
    want = net(ids, use_cache=False).logits
    cache = net(ids[:, :8]).past_key_values
    compiled = torch.compile(net, backend="eager")
    for t, step in ((8, compiled), (9, net), (10, net)):
        got = step(ids[:, t : t + 1], past_key_values=cache).logits
        torch.testing.assert_close(got[:, 0], want[:, t], **close)
    created = compiled(ids[:, :8], use_cache=True).past_key_values
    assert {type(layer) for layer in created.layers} == {DynamicLayer}


@torch.no_grad()
def test_generate_uses_it_unless_given_another():
    net, ids = model("diff_v1"), token_ids(1)
    options = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True}
    own = net.generate(ids, **options)
    assert {type(layer) for layer in own.past_key_values.layers} == {GrowingLayer}
    given = DynamicCache(config=net.config)
    other = net.generate(ids, past_key_values=given, **options)
    assert {type(layer) for layer in given.layers} == {DynamicLayer}
    assert torch.equal(own.sequences, other.sequences)
    again = net.generate(own.sequences, past_key_values=own.past_key_values, **options)
    assert torch.equal(again.sequences, net.generate(own.sequences, **options).sequences)


@pytest.mark.parametrize("fields", [{}, MIXED], ids=["full", "windows"])
@torch.no_grad()
def test_assisted_decoding_and_beams(fields):
    net, ids = model("diff_v2", **fields), token_ids(1)
    assistant = model("standard", **fields)
    greedy = {"max_new_tokens": 12, "do_sample": False}
    want = net.generate(ids, use_cache=False, **greedy)
    assert torch.equal(net.generate(ids, **greedy), want)
    assert torch.equal(net.generate(ids, assistant_model=assistant, **greedy), want)
    assert torch.equal(net.generate(ids, prompt_lookup_num_tokens=3, **greedy), want)
    beams = {"num_beams": 3, "num_return_sequences": 2, **greedy}
    assert torch.equal(net.generate(ids, **beams), net.generate(ids, use_cache=False, **beams))


@torch.no_grad()
def test_a_running_state_is_reset_reordered_and_kept():
    plain, grown = layers(LinearAttentionAndFullAttentionLayer)
    k, state = torch.randn(2, 3, 4, 5), torch.randn(2, 7)
    for cache in (plain, grown):
        cache.update(k, k, 0)
        cache.update_recurrent_state(state, 0)
        cache.reorder_cache(torch.tensor([1, 1]))
    assert torch.equal(grown.layers[0].recurrent_states[0], state[[1, 1]])
    torch.testing.assert_close(grown.update(k, k, 0), plain.update(k, k, 0))
