"""Decoding: a cache, padding, the order of a batch and later tokens change nothing."""

import pytest
import torch
from transformers.cache_utils import DynamicCache, StaticCache

from tests.attention.cases import NAMES
from tests.models.tiny import left_padded, model, texts

each = pytest.mark.parametrize("name", NAMES)
close = {"atol": 2e-5, "rtol": 1e-4}


def stepwise(net, ids, cuts, cache, mask=None):
    """Return the logits of all tokens, fed in pieces that end at `cuts`."""
    pieces, start = [], 0
    for end in cuts:
        seen = None if mask is None else mask[:, :end]
        out = net(ids[:, start:end], attention_mask=seen, past_key_values=cache, use_cache=True)
        pieces.append(out.logits)
        start = end
    return torch.cat(pieces, dim=1)


@each
@pytest.mark.parametrize("kv_heads", [8, 4], ids=["mha", "gqa"])
@torch.no_grad()
def test_cached_decoding_is_the_full_forward(name, kv_heads):
    net, ids = model(name, num_key_value_heads=kv_heads), texts()
    want = net(ids, use_cache=False).logits
    for cuts in ([*range(1, 20)], [7, 8, 19], [1, 12, 19]):
        got = stepwise(net, ids, cuts, DynamicCache(config=net.config))
        torch.testing.assert_close(got, want, **close)


@each
@torch.no_grad()
def test_cached_decoding_of_a_padded_batch(name):
    net = model(name)
    ids, mask = left_padded(texts(), [19, 11, 5])
    want = net(ids, attention_mask=mask, use_cache=False).logits
    got = stepwise(net, ids, [6, 7, 15, 19], DynamicCache(config=net.config), mask)
    torch.testing.assert_close(got[mask.bool()], want[mask.bool()], **close)
    assert got.isfinite().all()


@each
@torch.no_grad()
def test_left_padding_changes_nothing(name):
    net = model(name)
    lengths = [19, 11, 5]
    ids, mask = left_padded(texts(), lengths)
    got = net(ids, attention_mask=mask).logits
    for row, n in enumerate(lengths):
        want = net(ids[row : row + 1, -n:]).logits[0]
        torch.testing.assert_close(got[row, -n:], want, **close)


@each
@torch.no_grad()
def test_batch_order_changes_nothing(name):
    net, ids, turned = model(name), texts(), torch.tensor([2, 0, 1])
    torch.testing.assert_close(net(ids[turned]).logits, net(ids).logits[turned], **close)


@each
def test_future_tokens_change_nothing(name):
    net, ids = model(name), texts(1, 12)
    x = net.model.embed_tokens(ids).detach().requires_grad_()
    logits = net(inputs_embeds=x, use_cache=False).logits
    for t in (0, 5, 10):
        (gradient,) = torch.autograd.grad(logits[0, t].square().sum(), x, retain_graph=True)
        assert (gradient[0, t + 1 :] == 0).all()
        assert (gradient[0, : t + 1].abs().sum(-1) > 0).all()


@each
@torch.no_grad()
def test_generate_greedy_sampling_beams_and_padded_batches(name):
    net = model(name)
    ids, mask = left_padded(texts(), [19, 11, 5])
    greedy = {"do_sample": False, "max_new_tokens": 6, "pad_token_id": 0}
    together = net.generate(ids, attention_mask=mask, **greedy)
    for row, n in enumerate([19, 11, 5]):
        alone = net.generate(ids[row : row + 1, -n:], **greedy)
        assert torch.equal(together[row, -6:], alone[0, -6:])
        uncached = net.generate(ids[row : row + 1, -n:], use_cache=False, **greedy)
        assert torch.equal(alone, uncached)
    beams = net.generate(ids, attention_mask=mask, num_beams=3, **greedy)
    slow = net.generate(ids, attention_mask=mask, num_beams=3, use_cache=False, **greedy)
    assert torch.equal(beams, slow)
    drawn = [
        net.generate(ids, attention_mask=mask, do_sample=True, top_p=0.9, max_new_tokens=6)
        for _ in (torch.manual_seed(3), torch.manual_seed(3))
    ]
    assert drawn[0].shape == (3, 25)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("low_rank_noise", "fixed_noise")])
@torch.no_grad()
def test_generate_returns_the_maps_of_each_step(name):
    out = model(name).generate(
        texts(1, 7),
        max_new_tokens=3,
        do_sample=False,
        output_attentions=True,
        return_dict_in_generate=True,
    )
    assert [step[0].shape[-2:] for step in out.attentions] == [(7, 7), (1, 8), (1, 9)]


@pytest.mark.parametrize(
    "name", ["standard", "diff_v1", "diff_v2", "low_dim_noise", "gated", "sink"]
)
@torch.no_grad()
def test_a_static_cache_is_a_dynamic_one(name):
    net = model(name)
    ids, mask = left_padded(texts(), [19, 11, 5])
    want = net(ids, attention_mask=mask, use_cache=False).logits
    cache = StaticCache(config=net.config, max_cache_len=32)
    got = stepwise(net, ids, [15, 16, 17, 18, 19], cache, mask)
    torch.testing.assert_close(got[mask.bool()], want[mask.bool()], **close)
    whole = stepwise(net, texts(), [12, 13, 19], StaticCache(config=net.config, max_cache_len=32))
    torch.testing.assert_close(whole, net(texts(), use_cache=False).logits, **close)
    greedy = {"do_sample": False, "max_new_tokens": 5, "attention_mask": mask}
    dynamic = net.generate(ids, **greedy)
    assert torch.equal(net.generate(ids, cache_implementation="static", **greedy), dynamic)


@pytest.mark.parametrize("name", ["grouped", "low_rank_noise", "fixed_noise"])
def test_the_others_refuse_a_static_cache(name):
    with pytest.raises(ValueError, match=f"{name} does not work with a static cache"):
        model(name).generate(texts(), cache_implementation="static", max_new_tokens=2)


def test_a_cache_without_room_for_the_running_state_is_refused():
    net = model("low_rank_noise")
    with pytest.raises(ValueError, match=r"make it with DynamicCache\(config=model.config\)"):
        net(texts(), past_key_values=DynamicCache())


@pytest.mark.parametrize("name", ["low_rank_noise", "fixed_noise"])
@torch.no_grad()
def test_the_running_state_has_constant_size(name):
    net, cache = model(name), None
    sizes = set()
    for T in (3, 1, 9):
        out = net(texts(1, T), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        sizes.add(tuple(cache.layers[0].recurrent_states[0].shape))
    assert len(sizes) == 1
    assert cache.get_seq_length() == 13
    with pytest.raises(ValueError, match="maps of the whole text at once"):
        net(texts(1, 2), past_key_values=cache, output_attentions=True)


@torch.no_grad()
def test_packed_texts_do_not_see_each_other():
    net, ids = model("diff_v1"), texts(1, 12)
    positions = torch.tensor([[*range(5), *range(7)]])
    got = net(ids, position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(got[:, 5:], net(ids[:, 5:]).logits, **close)
    with pytest.raises(ValueError, match="only a boolean padding mask"):
        model("fixed_noise")(ids, position_ids=positions, use_cache=False)


@torch.no_grad()
def test_a_mask_of_ones_own_is_obeyed():
    net, ids = model("diff_v2"), texts(1, 6)
    square = torch.eye(6, dtype=torch.bool)[None, None]
    alone = net(ids, attention_mask=square, use_cache=False).logits
    for t in range(6):
        torch.testing.assert_close(alone[:, t], net(ids[:, t : t + 1]).logits[:, 0], **close)


@pytest.mark.parametrize("name", ["low_rank_noise", "fixed_noise"])
def test_decoding_that_takes_tokens_back_is_refused_where_the_state_cannot(name):
    with pytest.raises(ValueError, match="stateful"):
        model(name).generate(texts(1), prompt_lookup_num_tokens=3, max_new_tokens=4)
    ids = texts(1)
    net = model("diff_v1")
    greedy = {"max_new_tokens": 6, "do_sample": False}
    looked_up = net.generate(ids, prompt_lookup_num_tokens=3, **greedy)
    assert torch.equal(looked_up, net.generate(ids, **greedy))
