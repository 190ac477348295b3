"""`gru` and `lstm`: PyTorch's layers, over padded and packed sequences; no maps."""

import pytest
import torch

from antiphase.attention import MECHANISMS
from antiphase.attention.recurrence import matched_width, run_recurrence
from antiphase.models import preset
from antiphase.training.rank_penalty import noise_ranks
from tests.attention.cases import small, tokens
from tests.models.tiny import model, token_ids

each = pytest.mark.parametrize("name", ["gru", "lstm"])


@each
def test_the_layer_is_pytorchs_and_an_output_projection(name):
    layer, x = small(name), tokens()
    want = layer.rnn(x)[0] @ layer.o_proj.weight.T
    torch.testing.assert_close(layer(x, causal=True), want)


@each
def test_documents_and_padding_are_sequences_of_their_own(name):
    """In outputs, gradients and states, with a state that only the first document continues."""
    rnn, x = small(name).double().rnn, tokens(3, 12, dtype=torch.float64).requires_grad_()
    width = rnn.hidden_size * (2 if name == "lstm" else 1)
    state = torch.randn(3, width, dtype=torch.float64)
    keys = torch.ones(3, 12, dtype=torch.bool)
    keys[0, :3] = keys[0, 6] = keys[1, 10:] = False
    keys[2] = False
    starts = torch.zeros(3, 12, dtype=torch.bool)
    starts[0, 7] = starts[1, 4] = starts[1, 5] = True
    out, after = run_recurrence(rnn, x, state, keys, starts)
    assert (out[~keys] == 0).all()
    upstream = torch.randn_like(out)
    (gradient,) = torch.autograd.grad(out, x, upstream, retain_graph=True)
    for row, places, continues in (
        (0, [3, 4, 5], True),
        (0, [7, 8, 9, 10, 11], False),
        (1, [0, 1, 2, 3], True),
        (1, [4], False),
        (1, [5, 6, 7, 8, 9], False),
    ):
        alone = x[row, places][None].detach().requires_grad_()
        want, last = run_recurrence(rnn, alone, state[row : row + 1] if continues else None)
        torch.testing.assert_close(out[row, places], want[0])
        (expected,) = torch.autograd.grad(want[0], alone, upstream[row, places])
        torch.testing.assert_close(gradient[row, places], expected[0])
        if places[-1] in (11, 9):
            torch.testing.assert_close(after[row], last[0])
    torch.testing.assert_close(after[2], state[2])  # nothing but padding


@each
def test_a_start_in_padding_empties_the_state(name):
    rnn, x = small(name).rnn, tokens(1, 4)
    keys, starts = torch.zeros(2, 1, 4, dtype=torch.bool)
    starts[0, 1] = keys[0, 0] = True
    _, after = run_recurrence(rnn, x, None, keys, starts)
    assert (after == 0).all()


@pytest.mark.parametrize(("name", "gates"), [("gru", 3), ("lstm", 4)])
@pytest.mark.parametrize(("D", "kv_heads"), [(64, 8), (384, 12), (512, 2), (768, 12)])
def test_the_width_matches_the_parameters_of_standard_attention(name, gates, D, kv_heads):
    heads = max(8, kv_heads)
    ours, standard = (MECHANISMS[n](D, heads, kv_heads) for n in (name, "standard"))
    count = sum(p.numel() for p in ours.parameters())
    baseline = sum(p.numel() for p in standard.parameters())
    assert count <= baseline
    wider = MECHANISMS[name](D, heads, kv_heads, width=ours.width + 8)
    assert sum(p.numel() for p in wider.parameters()) > baseline
    assert matched_width(baseline, D, gates) == ours.width


@each
def test_what_needs_maps_says_that_there_are_none(name):
    with pytest.raises(ValueError, match=f"maps: {name} is a recurrence, which has no attention"):
        small(name)(tokens(), causal=True, return_maps=True)
    net = model(name)
    with pytest.raises(ValueError, match="has no attention map"):
        net(token_ids(), output_attentions=True)
    with noise_ranks(net), pytest.raises(ValueError, match="has no attention map"):
        net(token_ids())


@each
@torch.no_grad()
def test_the_state_is_the_cache(name):
    net = model(name)
    cache = net(token_ids(2, 9)).past_key_values
    states = 2 if name == "lstm" else 1
    for layer, kept in zip(net.model.attention_layers, cache.layers, strict=True):
        assert kept.recurrent_states[0].shape == (2, states * layer.width)
        assert kept.keys.numel() == kept.values.numel() == 0
    assert cache.get_seq_length() == 9


@each
def test_presets_have_equal_parameters_with_little_change_of_the_feed_forward_width(name):
    for size in ("nano", "mini", "1.4b"):
        cfg = preset(size, name)
        assert abs(cfg.feed_forward_width / cfg.intermediate_size - 1) < 0.1
