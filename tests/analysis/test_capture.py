"""Captured maps are those that the model used, at the requested rows."""

import pytest
import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig, LlamaForCausalLM

from antiphase import AntiphaseForCausalLM, preset
from antiphase.analysis import capture, ground_truth
from antiphase.analysis.metrics import dynamics, flow
from antiphase.attention import MECHANISMS
from antiphase.tasks import task

IDS = torch.randint(2, 40, (2, 24), generator=torch.Generator().manual_seed(0))
ROWS = torch.tensor([[3, 23], [10, 17]])


def model(attention="diff_v1", **options):
    torch.manual_seed(0)
    config = preset(
        "nano",
        attention,
        hidden_size=64,
        num_attention_heads=4,
        vocab_size=64,
        initializer_range=0.3,
        attention_options=options,
    )
    return AntiphaseForCausalLM(config).eval()


@pytest.mark.parametrize("attention", sorted(MECHANISMS))
def test_rows_are_those_of_the_complete_maps(attention):
    net = model(attention)
    if not MECHANISMS[attention].has_maps:
        with pytest.raises(ValueError, match=f"capture: {attention} has no attention maps"):
            capture(net, IDS, ROWS)
        return
    complete = net(IDS, output_attentions=True, use_cache=False)
    got = capture(net, IDS, ROWS, hidden=True, outputs=True)
    assert len(got.layers) == net.config.num_hidden_layers
    layers = zip(net.model.attention_layers, got.layers, complete.attentions, strict=True)
    for module, layer, A in layers:
        for b in range(2):
            want = A[b, :, ROWS[b]].float()
            torch.testing.assert_close(layer.difference[b], want, atol=1e-5, rtol=1e-4)
        if layer.noise is not None:
            parts = ("signal", "noise", "lam", "integral")
            again = module.applied_map({part: getattr(layer, part) for part in parts})
            torch.testing.assert_close(layer.difference, again, atol=1e-5, rtol=1e-4)
    want = complete.logits.gather(1, ROWS[..., None].expand(-1, -1, 64))
    torch.testing.assert_close(got.logits, want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        got.hidden[-1], net(IDS, output_hidden_states=True).hidden_states[-1]
    )
    assert got.layers[0].outputs.shape[:3] == (2, 24, got.layers[0].signal.shape[1])
    assert not net.training


def test_rows_of_a_windowed_and_capped_model():
    fields = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 64}
    masking = {"sliding_window": 5, "attn_logit_softcapping": 0.5}
    torch.manual_seed(0)
    net = AntiphaseForCausalLM(
        preset("nano", "diff_v1", initializer_range=0.3, **fields, **masking)
    ).eval()
    complete = net(IDS, output_attentions=True, use_cache=False).attentions
    for layer, A in zip(capture(net, IDS, ROWS, scores=True).layers, complete, strict=True):
        for b in range(2):
            torch.testing.assert_close(layer.difference[b], A[b, :, ROWS[b]], atol=1e-5, rtol=1e-4)
        softmax = torch.softmax(layer.scores[0], dim=-1)
        torch.testing.assert_close(softmax, layer.signal, atol=1e-5, rtol=1e-4)


def test_a_foreign_model_shows_one_map_per_head_and_keeps_its_implementation():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.5,
    )
    net = LlamaForCausalLM(config).eval()
    net.set_attn_implementation("eager")
    complete = net(IDS, output_attentions=True)
    net.set_attn_implementation("sdpa")
    got = capture(net, IDS, ROWS, scores=True, outputs=True)
    for layer, A in zip(got.layers, complete.attentions, strict=True):
        assert layer.noise is None
        for b in range(2):
            torch.testing.assert_close(layer.signal[b], A[b, :, ROWS[b]], atol=1e-5, rtol=1e-4)
    want = complete.logits.gather(1, ROWS[..., None].expand(-1, -1, 64))
    torch.testing.assert_close(got.logits, want, atol=1e-4, rtol=1e-4)
    assert net.config._attn_implementation == "sdpa"
    assert got.layers[0].scores[0].shape == (2, 4, 2, 24)


def test_diffllama_shows_its_pairs():
    torch.manual_seed(0)
    config = DiffLlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        initializer_range=0.5,
    )
    net = DiffLlamaForCausalLM(config).eval()
    got = capture(net, IDS, ROWS)
    assert got.layers[0].noise.shape == (2, 2, 2, 24)
    want = net(IDS).logits.gather(1, ROWS[..., None].expand(-1, -1, 64))
    torch.testing.assert_close(got.logits, want, atol=1e-4, rtol=1e-4)


def test_rows_outside_the_sequence_raise():
    with pytest.raises(ValueError, match="rows: got shape"):
        capture(model(), IDS, torch.tensor([[24], [0]]))
    with pytest.raises(ValueError, match="rows: got 'every'"):
        capture(model(), IDS, "every")


def test_the_default_is_the_last_row_and_all_rows_are_complete_maps():
    net = model()
    complete = capture(net, IDS, "all").layers[0]
    assert complete.difference.shape == (2, 2, 24, 24)
    last = capture(net, IDS).layers[0]
    torch.testing.assert_close(last.noise, complete.noise[:, :, -1:])


def test_ground_truth_of_a_needle_sequence():
    made = task("needle")(length=32, needles=2, repeats=1, queried=1, keys=4, values=4)
    batch = made.examples(range(6))
    truth = ground_truth(batch)
    tokens = torch.from_numpy(batch.tokens)
    for b in range(6):
        for n, row in enumerate(truth.rows[b].tolist()):
            places = truth.relevant[b, n].nonzero()[:, 0].tolist()
            assert places, "nothing to be found"
            assert max(places) < row
            # every place is the queried key or its answer
            assert {int(t) for t in tokens[b, places]} == {
                int(tokens[b, row]),
                int(tokens[b, row + 1]),
            }
            assert truth.own[b, n].nonzero()[:, 0].tolist() == [row]
    assert ground_truth(batch, last=1).rows.tolist() == [[30]] * 6


@pytest.fixture(scope="module")
def needle():
    made = task("needle")(length=24, needles=2, keys=4, values=4)
    batch = made.examples(range(4))
    return torch.from_numpy(batch.tokens), ground_truth(batch)


def test_edits_that_change_nothing_change_no_logit(needle):
    ids, truth = needle
    net = model()
    same = flow.logit_change(net, ids, truth, lambda noise: noise, layer=1)
    assert float(same.abs().max()) < 1e-4
    full = flow.logit_change(net, ids, truth, flow.of_rank(24), layer=1)
    assert float(full.abs().max()) < 1e-4
    assert float(flow.logit_change(net, ids, truth, layer=1).abs().max()) > 1e-3
    assert float(flow.logit_change(net, ids, truth, flow.running_mean, 0).abs().max()) > 1e-3
    assert not hasattr(net.model.attention_layers[1], "__wrapped__")
    again = flow.logit_change(net, ids, truth, lambda noise: noise, layer=1)
    assert torch.equal(same, again)


@pytest.mark.parametrize("attention", ["rectified", "simplex"])
def test_a_replaced_noise_map_is_rectified_too(attention, needle):
    ids, truth = needle
    net = model(attention, lam=0.8)
    assert (capture(net, ids, "all").layers[1].difference == 0).sum() > 4 * 2 * 24 * 23 / 2
    same = flow.logit_change(net, ids, truth, lambda noise: noise, layer=1)
    assert float(same.abs().max()) < 1e-4
    assert float(flow.logit_change(net, ids, truth, layer=1).abs().max()) > 1e-3


def test_knocking_out_every_head_is_knocking_out_the_layer(needle):
    ids, truth = needle
    net = model(lam=0.0)
    assert float(flow.logit_change(net, ids, truth, layer=0).abs().max()) < 1e-5
    with pytest.raises(ValueError, match="one map per head, no noise"):
        flow.logit_change(model("standard"), ids, truth)


def test_attention_times_gradient_is_a_fraction(needle):
    ids, truth = needle
    net = model()
    fraction = flow.attention_times_gradient(net, ids, truth)
    assert fraction.shape == (2, 4)
    assert float(fraction.min()) >= 0
    assert float(fraction.max()) <= 1
    assert all(p.grad is None for p in net.parameters())


def test_pair_gradients_and_residual_cosine(needle):
    ids, _ = needle
    net = model()
    net(ids, labels=ids, use_cache=False).loss.backward()
    found = dynamics.pair_gradients(net.model.attention_layers[0])
    assert set(found) == {"q", "k"}
    assert all(-1 <= v <= 1 for v in found.values())
    assert dynamics.residual_cosine(net, ids).shape == (2, 4, 24)
    q = net.model.attention_layers[0].q_proj.weight
    q.grad.view(-1, 2, 16, 64)[:, 1] = -q.grad.view(-1, 2, 16, 64)[:, 0]
    assert dynamics.pair_gradients(net.model.attention_layers[0])["q"] == pytest.approx(-1)


def test_hessian_extremes_are_the_dense_ones():
    torch.manual_seed(0)
    config = preset(
        "nano",
        "diff_v1",
        hidden_size=8,
        num_attention_heads=2,
        num_hidden_layers=1,
        vocab_size=6,
        intermediate_size=8,
        initializer_range=0.5,
    )
    net = AntiphaseForCausalLM(config).double()
    ids = torch.randint(0, 6, (2, 8))
    top, bottom = dynamics.hessian_extremes(net, {"input_ids": ids, "labels": ids}, steps=60)
    net.set_attn_implementation("reference")
    parameters = list(net.parameters())
    grads = torch.autograd.grad(
        net(ids, labels=ids, use_cache=False).loss, parameters, create_graph=True
    )
    flat = torch.cat([g.flatten() for g in grads])
    H = torch.stack(
        [
            torch.cat([p.flatten() for p in torch.autograd.grad(g, parameters, retain_graph=True)])
            for g in flat
        ]
    )
    dense = torch.linalg.eigvalsh(H)
    assert top == pytest.approx(float(dense[-1]), rel=1e-3)
    assert bottom == pytest.approx(float(dense[0]), rel=1e-2)
