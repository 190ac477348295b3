"""Sliding windows, dropout and soft-cap of a model, by layer; decoding equals the full pass."""

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache, StaticCache

from antiphase.attention import MECHANISMS
from tests.attention.cases import NAMES
from tests.models.tiny import left_padded, model, token_ids

WINDOWED = [n for n in NAMES if not MECHANISMS[n].running_state]
each_windowed = pytest.mark.parametrize("name", WINDOWED)
windows = pytest.mark.parametrize("window", [1, 2, 4, 19, 40])
MIXED = ["sliding_attention", "full_attention"]
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


@each_windowed
@windows
@torch.no_grad()
def test_the_maps_end_at_the_window(name, window):
    net = model(name, sliding_window=window, layer_types=MIXED)
    first, second = net(token_ids(2, 19), output_attentions=True).attentions
    distance = torch.arange(19)[:, None] - torch.arange(19)
    outside = (distance < 0) | (distance >= window)
    assert (first[..., outside] == 0).all()
    assert (first.abs().sum(-1) > 0).any()
    assert (second[..., distance < 0] == 0).all()
    far = second[..., distance >= 4]
    assert name == "top_k" or (far != 0).any()  # the other layer has no window


@each_windowed
@windows
@torch.no_grad()
def test_cached_decoding_is_the_full_forward(name, window):
    for types in (None, MIXED):
        net, ids = model(name, sliding_window=window, layer_types=types), token_ids()
        if name == "threshold":  # its norm enlarges the rounding of weights near the threshold
            net = net.double()
        want = net(ids, use_cache=False).logits
        for ends in ([*range(1, 20)], [7, 8, 19], [1, 12, 19]):
            got = stepwise(net, ids, ends, DynamicCache(config=net.config))
            torch.testing.assert_close(got, want, **close)


@each_windowed
@torch.no_grad()
def test_cached_decoding_of_a_padded_batch(name):
    net = model(name, sliding_window=4, layer_types=MIXED)
    ids, mask = left_padded(token_ids(), [19, 11, 5])
    want = net(ids, attention_mask=mask, use_cache=False).logits
    got = stepwise(net, ids, [6, 7, 15, 19], DynamicCache(config=net.config), mask)
    torch.testing.assert_close(got[mask.bool()], want[mask.bool()], **close)


@pytest.mark.parametrize("name", [n for n in WINDOWED if MECHANISMS[n].static_cache])
@pytest.mark.parametrize("window", [3, 40])
@torch.no_grad()
def test_a_static_cache_gives_what_a_dynamic_one_gives(name, window):
    net = model(name, sliding_window=window, layer_types=MIXED)
    ids, mask = left_padded(token_ids(), [19, 11, 5])
    want = net(ids, attention_mask=mask, use_cache=False).logits
    cache = StaticCache(config=net.config, max_cache_len=32)
    got = stepwise(net, ids, [15, 16, 17, 18, 19], cache, mask)
    torch.testing.assert_close(got[mask.bool()], want[mask.bool()], **close)
    cache = StaticCache(config=net.config, max_cache_len=32)
    unpadded = stepwise(net, token_ids(), [2, 3, 4, 12, 13, 19], cache)
    torch.testing.assert_close(unpadded, net(token_ids(), use_cache=False).logits, **close)


@pytest.mark.parametrize("name", ["diff_v1", "diff_v2", "top_k"])
@torch.no_grad()
def test_generate(name):
    net = model(name, sliding_window=4, layer_types=MIXED)
    ids, mask = left_padded(token_ids(), [19, 11, 5])
    greedy = {"do_sample": False, "max_new_tokens": 6, "attention_mask": mask}
    dynamic = net.generate(ids, **greedy)
    assert torch.equal(dynamic, net.generate(ids, use_cache=False, **greedy))
    assert torch.equal(dynamic, net.generate(ids, cache_implementation="static", **greedy))
    beams = net.generate(ids, num_beams=3, **greedy)
    assert torch.equal(beams, net.generate(ids, num_beams=3, use_cache=False, **greedy))
    one = {"do_sample": False, "max_new_tokens": 6}
    looked_up = net.generate(ids[:1], prompt_lookup_num_tokens=3, **one)
    assert torch.equal(looked_up, net.generate(ids[:1], **one))


@torch.no_grad()
def test_the_cache_of_a_windowed_layer_stays_small():
    net = model("diff_v1", sliding_window=4, layer_types=MIXED)
    cache = DynamicCache(config=net.config)
    net(token_ids(), past_key_values=cache)
    assert [layer.keys.shape[2] for layer in cache.layers] == [3, 19]


@pytest.mark.parametrize("name", ["standard", "diff_v1", "diff_v2"])
@torch.no_grad()
def test_packed_documents_with_a_window(name):
    net = model(name, sliding_window=4, layer_types=MIXED).double()
    ids = token_ids(1, 19)
    positions = torch.tensor([[*range(6), *range(9), *range(4)]])
    want = torch.cat(
        [net(ids[:, a:b], use_cache=False).logits for a, b in ((0, 6), (6, 15), (15, 19))], 1
    )
    for ends in ([19], [5, 6, 8, 17, 19], [*range(1, 20)]):
        cache, start, found = DynamicCache(config=net.config), 0, []
        for end in ends:
            now = slice(start, end)
            out = net(ids[:, now], position_ids=positions[:, now], past_key_values=cache)
            found.append(out.logits)
            start = end
        torch.testing.assert_close(torch.cat(found, 1), want, atol=1e-9, rtol=1e-9)


def test_a_compiled_windowed_model_is_the_eager_one():
    torch._dynamo.reset()
    net, ids = model("diff_v2", sliding_window=4, attn_logit_softcapping=3.0), token_ids()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    got = compiled(ids, use_cache=False).logits
    torch.testing.assert_close(got, net(ids, use_cache=False).logits, **close)


@pytest.mark.parametrize("name", NAMES)
def test_dropout_is_of_training_alone_and_repeats_with_its_seed(name):
    if not MECHANISMS[name].has_maps:
        with pytest.raises(ValueError, match=f"attention_dropout: .* {name} has no attention map"):
            model(name, attention_dropout=0.4)
        return
    net, ids = model(name, attention_dropout=0.4), token_ids()
    plain = model(name)
    assert torch.equal(net(ids).logits, plain(ids).logits)
    net.train()
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        loss = net(ids, labels=ids).loss
        results.append(torch.autograd.grad(loss, net.model.layers[0].self_attn.v_proj.weight)[0])
    assert torch.equal(results[0], results[1])
    assert not torch.allclose(results[0], results[2])
    net.gradient_checkpointing_enable({"use_reentrant": False})
    torch.manual_seed(1)
    loss = net(ids, labels=ids, use_cache=False).loss
    again = torch.autograd.grad(loss, net.model.layers[0].self_attn.v_proj.weight)[0]
    torch.testing.assert_close(again, results[0])


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_soft_capped_scores_change_the_maps_and_decode_the_same(name):
    if not MECHANISMS[name].has_softmax:
        with pytest.raises(ValueError, match=f"attn_logit_softcapping: .* {name} has no softmax"):
            model(name, attn_logit_softcapping=0.3)
        return
    net, ids = model(name, attn_logit_softcapping=0.3), token_ids()
    want = net(ids, use_cache=False).logits
    assert not torch.allclose(want, model(name)(ids, use_cache=False).logits, atol=1e-3)
    got = stepwise(net, ids, [7, 8, 19], DynamicCache(config=net.config))
    torch.testing.assert_close(got, want, **close)


@torch.no_grad()
def test_saving_keeps_windows_dropout_and_soft_cap(tmp_path):
    fields = {"sliding_window": 4, "layer_types": MIXED, "attn_logit_softcapping": 5.0}
    net = model("diff_v1", **fields, attention_dropout=0.1)
    net.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    layers = loaded.model.attention_layers
    assert [layer.window for layer in layers] == [4, None]
    assert {(layer.dropout, layer.softcap) for layer in layers} == {(0.1, 5.0)}
    assert torch.equal(loaded(token_ids()).logits, net(token_ids()).logits)
