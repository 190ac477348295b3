"""Decoding: a cache, padding, the order of a batch and future tokens change nothing."""

import pytest
import torch
from transformers.cache_utils import DynamicCache, StaticCache

from antiphase.attention import MECHANISMS
from antiphase.attention.parts import Lambda
from tests.attention.cases import INDEPENDENT, NAMES
from tests.models.tiny import left_padded, model, token_ids

each = pytest.mark.parametrize("name", NAMES)
each_independent = pytest.mark.parametrize("name", INDEPENDENT)
close = {"atol": 2e-5, "rtol": 1e-4}


def stepwise(net, ids, ends, cache, mask=None):
    """Return the logits of all tokens, decoded in chunks that end at `ends`."""
    chunks, start = [], 0
    for end in ends:
        padding = None if mask is None else mask[:, :end]
        out = net(ids[:, start:end], attention_mask=padding, past_key_values=cache, use_cache=True)
        chunks.append(out.logits)
        start = end
    return torch.cat(chunks, dim=1)


@each
@pytest.mark.parametrize("kv_heads", [8, 4], ids=["mha", "gqa"])
@torch.no_grad()
def test_cached_decoding_is_the_full_forward(name, kv_heads):
    net, ids = model(name, num_key_value_heads=kv_heads), token_ids()
    want = net(ids, use_cache=False).logits
    for ends in ([*range(1, 20)], [7, 8, 19], [1, 12, 19]):
        got = stepwise(net, ids, ends, DynamicCache(config=net.config))
        torch.testing.assert_close(got, want, **close)


@each
@torch.no_grad()
def test_cached_decoding_of_a_padded_batch(name):
    net = model(name)
    ids, mask = left_padded(token_ids(), [19, 11, 5])
    want = net(ids, attention_mask=mask, use_cache=False).logits
    got = stepwise(net, ids, [6, 7, 15, 19], DynamicCache(config=net.config), mask)
    torch.testing.assert_close(got[mask.bool()], want[mask.bool()], **close)
    assert got.isfinite().all()


@each_independent
@torch.no_grad()
def test_left_padding_changes_nothing(name):
    net = model(name)
    lengths = [19, 11, 5]
    ids, mask = left_padded(token_ids(), lengths)
    got = net(ids, attention_mask=mask).logits
    for row, n in enumerate(lengths):
        want = net(ids[row : row + 1, -n:]).logits[0]
        torch.testing.assert_close(got[row, -n:], want, **close)


@each_independent
@torch.no_grad()
def test_batch_order_changes_nothing(name):
    net, ids, order = model(name), token_ids(), torch.tensor([2, 0, 1])
    torch.testing.assert_close(net(ids[order]).logits, net(ids).logits[order], **close)


@each
def test_future_tokens_change_nothing(name):
    net, ids = model(name), token_ids(2, 12)
    x = net.model.embed_tokens(ids).detach().requires_grad_()
    logits = net(inputs_embeds=x, use_cache=False).logits
    for t in (0, 5, 10):
        (gradient,) = torch.autograd.grad(logits[0, t].square().sum(), x, retain_graph=True)
        assert (gradient[0, t + 1 :] == 0).all()
        assert (gradient[0, : t + 1].abs().sum(-1) > 0).all()


@each_independent
@torch.no_grad()
def test_generate_greedy_sampling_beams_and_padded_batches(name):
    net = model(name)
    ids, mask = left_padded(token_ids(), [19, 11, 5])
    greedy = {"do_sample": False, "max_new_tokens": 6, "pad_token_id": 0}
    together = net.generate(ids, attention_mask=mask, **greedy)
    for row, n in enumerate([19, 11, 5]):
        alone = net.generate(ids[row : row + 1, -n:], **greedy)
        assert torch.equal(together[row, -6:], alone[0, -6:])
        uncached = net.generate(ids[row : row + 1, -n:], use_cache=False, **greedy)
        assert torch.equal(alone, uncached)
    beams = net.generate(ids, attention_mask=mask, num_beams=3, **greedy)
    uncached = net.generate(ids, attention_mask=mask, num_beams=3, use_cache=False, **greedy)
    assert torch.equal(beams, uncached)
    sampled = [
        net.generate(ids, attention_mask=mask, do_sample=True, top_p=0.9, max_new_tokens=6)
        for _ in (torch.manual_seed(3), torch.manual_seed(3))
    ]
    assert sampled[0].shape == (3, 25)


@pytest.mark.parametrize("name", [n for n in NAMES if not MECHANISMS[n].running_state])
@torch.no_grad()
def test_generate_returns_the_maps_of_each_step(name):
    out = model(name).generate(
        token_ids(2, 7),
        max_new_tokens=3,
        do_sample=False,
        output_attentions=True,
        return_dict_in_generate=True,
    )
    assert [step[0].shape[-2:] for step in out.attentions] == [(7, 7), (1, 8), (1, 9)]


@pytest.mark.parametrize("name", [n for n in NAMES if MECHANISMS[n].static_cache])
@torch.no_grad()
def test_a_static_cache_gives_what_a_dynamic_one_gives(name):
    net = model(name)
    ids, mask = left_padded(token_ids(), [19, 11, 5])
    want = net(ids, attention_mask=mask, use_cache=False).logits
    cache = StaticCache(config=net.config, max_cache_len=32)
    got = stepwise(net, ids, [15, 16, 17, 18, 19], cache, mask)
    torch.testing.assert_close(got[mask.bool()], want[mask.bool()], **close)
    cache = StaticCache(config=net.config, max_cache_len=32)
    unpadded = stepwise(net, token_ids(), [12, 13, 19], cache)
    torch.testing.assert_close(unpadded, net(token_ids(), use_cache=False).logits, **close)
    greedy = {"do_sample": False, "max_new_tokens": 5, "attention_mask": mask}
    dynamic = net.generate(ids, **greedy)
    assert torch.equal(net.generate(ids, cache_implementation="static", **greedy), dynamic)


@pytest.mark.parametrize("name", [n for n in NAMES if not MECHANISMS[n].static_cache])
def test_the_other_mechanisms_reject_a_static_cache(name):
    with pytest.raises(ValueError, match=f"{name} does not work with a static cache"):
        model(name).generate(token_ids(), cache_implementation="static", max_new_tokens=2)


def test_a_cache_that_cannot_store_the_running_state_is_rejected():
    net = model("low_rank_noise")
    with pytest.raises(ValueError, match=r"create it with DynamicCache\(config=model.config\)"):
        net(token_ids(), past_key_values=DynamicCache())


@pytest.mark.parametrize("name", [n for n in NAMES if MECHANISMS[n].running_state])
@torch.no_grad()
def test_the_running_state_has_constant_size(name):
    net, cache = model(name), None
    sizes = set()
    for T in (3, 1, 9):
        out = net(token_ids(1, T), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        sizes.add(tuple(cache.layers[0].recurrent_states[0].shape))
    assert len(sizes) == 1
    assert cache.get_seq_length() == 13
    why = (
        "maps of the complete sequence at once" if MECHANISMS[name].has_maps else "no attention map"
    )
    with pytest.raises(ValueError, match=why):
        net(token_ids(1, 2), past_key_values=cache, output_attentions=True)


@torch.no_grad()
def test_a_4d_mask_of_the_caller_is_applied():
    net, ids = model("diff_v2"), token_ids(1, 6)
    square = torch.eye(6, dtype=torch.bool)[None, None]
    alone = net(ids, attention_mask=square, use_cache=False).logits
    for t in range(6):
        torch.testing.assert_close(alone[:, t], net(ids[:, t : t + 1]).logits[:, 0], **close)


@pytest.mark.parametrize("name", [n for n in NAMES if MECHANISMS[n].running_state])
def test_speculative_decoding_is_rejected_with_a_running_state(name):
    with pytest.raises(ValueError, match="stateful"):
        model(name).generate(token_ids(1), prompt_lookup_num_tokens=3, max_new_tokens=4)
    ids = token_ids(1)
    net = model("diff_v1")
    greedy = {"max_new_tokens": 6, "do_sample": False}
    looked_up = net.generate(ids, prompt_lookup_num_tokens=3, **greedy)
    assert torch.equal(looked_up, net.generate(ids, **greedy))


@torch.no_grad()
def test_lam_is_computed_once_per_sequence_and_follows_its_parameters(monkeypatch):
    net, ids = model("diff_v1"), token_ids()
    computed = []
    value = Lambda._value
    monkeypatch.setattr(Lambda, "_value", lambda *a: computed.append(1) or value(*a))
    cache = net(ids[:, :3]).past_key_values
    for t in range(3, 8):
        net(ids[:, t : t + 1], past_key_values=cache)
    assert len(computed) == 2 * len(net.model.layers)  # prefill, then the first token
    for layer in net.model.attention_layers:
        layer.lam.q1.data.add_(1.0)
    want = net(ids, use_cache=False).logits
    cache.crop(-8)
    for fresh in (cache, DynamicCache(config=net.config)):
        torch.testing.assert_close(stepwise(net, ids, [3, 4, 19], fresh), want, **close)
