"""The bidirectional encoder and its heads: masked language modelling, classes, answers."""

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
)

from antiphase.attention import MECHANISMS
from antiphase.models import (
    AntiphaseForCausalLM,
    AntiphaseForMaskedLM,
    AntiphaseForQuestionAnswering,
    AntiphaseForTokenClassification,
    AntiphaseModel,
)
from antiphase.models.config_checks import can_be_bidirectional
from tests.attention.cases import INDEPENDENT, NAMES, small
from tests.models.tiny import config, left_padded, token_ids

CLOSE = {"atol": 2e-5, "rtol": 1e-4}
POSITIONS = ["rope", "sinusoidal", "none"]


def encoder(name, kind=AntiphaseForMaskedLM, **fields):
    torch.manual_seed(0)
    return kind(config(name, is_causal=False, **fields)).eval()


def skip_ordered(name):
    if not can_be_bidirectional(MECHANISMS[name]):
        pytest.skip(f"{name} reads tokens in their order")


@pytest.mark.parametrize("name", NAMES)
def test_every_mechanism_trains_or_says_why_not(name):
    if MECHANISMS[name].causal_only:
        with pytest.raises(ValueError, match=f"attention: got '{name}', which reads tokens in"):
            config(name, is_causal=False)
        return
    net, ids = encoder(name).train(), token_ids()
    out = net(ids, labels=ids)
    out.loss.backward()
    assert out.logits.shape == (3, 19, 61)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trainable(net))


def trainable(net):
    return [p for p in net.parameters() if p.requires_grad]


@pytest.mark.parametrize("name", INDEPENDENT)
@torch.no_grad()
def test_every_token_sees_the_future_and_the_past(name):
    skip_ordered(name)
    net, ids = encoder(name), token_ids()
    changed = ids.clone()
    changed[:, 9] = changed[:, 9] % 60 + 1
    difference = (net(changed).logits - net(ids).logits).abs().amax((0, 2))
    if name in ("top_k", "threshold"):  # a token attends to some others only
        assert difference[:9].max() > 1e-4
    else:
        assert (difference > 1e-6).all()
    causal = AntiphaseModel(config(name)).eval()
    same = (causal(changed)[0] - causal(ids)[0]).abs().amax((0, 2))
    assert (same[:9] == 0).all()


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("name", ["standard", "diff_v1", "dint", "linear", "fixed_noise"])
@torch.no_grad()
def test_left_and_right_padding_give_the_logits_without(name, position):
    net, ids, lengths = encoder(name, position=position), token_ids(), [19, 12, 5]
    left, left_mask = left_padded(ids, lengths)
    right = torch.zeros_like(ids)
    right_mask = torch.zeros_like(ids)
    for i, n in enumerate(lengths):
        right[i, :n], right_mask[i, :n] = ids[i, -n:], 1
    from_left, from_right = net(left, left_mask).logits, net(right, right_mask).logits
    for i, n in enumerate(lengths):
        alone = net(ids[i : i + 1, -n:]).logits[0]
        torch.testing.assert_close(from_left[i, -n:], alone, **CLOSE)
        torch.testing.assert_close(from_right[i, :n], alone, **CLOSE)


@pytest.mark.parametrize("implementation", ["reference", "sdpa", "eager"])
@pytest.mark.parametrize("name", ["standard", "diff_v1", "diff_v2"])
@torch.no_grad()
def test_backends_and_attention_functions_agree(name, implementation):
    net, (ids, mask) = encoder(name), left_padded(token_ids(), [19, 12, 5])
    want = net(ids, mask).logits[mask.bool()]
    net.set_attn_implementation(implementation)
    torch.testing.assert_close(net(ids, mask).logits[mask.bool()], want, **CLOSE)
    torch.testing.assert_close(net(ids[:1]).logits[0, -1], want[18], **CLOSE)


@torch.no_grad()
def test_attentions_are_complete_maps():
    net, ids = encoder("diff_v1"), token_ids()
    out = net(ids, output_attentions=True, output_hidden_states=True)
    assert [A.shape for A in out.attentions] == [(3, 4, 19, 19)] * 2
    assert (out.attentions[0].triu(1) != 0).any()
    assert len(out.hidden_states) == 3
    torch.testing.assert_close(out.logits, net(ids).logits, **CLOSE)


@torch.no_grad()
def test_packed_documents_do_not_see_each_other():
    net, ids = encoder("diff_v2"), token_ids(B=1)
    positions = torch.cat([torch.arange(8), torch.arange(11)])[None]
    packed = net(ids, position_ids=positions).logits
    torch.testing.assert_close(packed[:, :8], net(ids[:, :8]).logits, **CLOSE)
    torch.testing.assert_close(packed[:, 8:], net(ids[:, 8:]).logits, **CLOSE)


def test_one_batch_is_learned_from_both_sides():
    """A masked token in the middle, known only from the token behind it."""
    torch.manual_seed(0)
    net = AntiphaseForMaskedLM(config("diff_v2", is_causal=False, initializer_range=0.02)).train()
    ids = token_ids(B=8, T=5)
    ids[:, 4] = ids[:, 2]  # says what is masked
    labels = torch.full_like(ids, -100)
    labels[:, 2], ids[:, 2] = ids[:, 2], 1
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    for _ in range(60):
        loss = net(ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss < 0.05
    assert torch.equal(net.eval()(ids).logits[:, 2].argmax(-1), labels[:, 2])


def test_the_loss_is_that_of_the_labelled_tokens():
    net, ids = encoder("standard"), token_ids()
    labels = torch.full_like(ids, -100)
    labels[:, 3:6] = ids[:, 3:6]
    out = net(ids, labels=labels)
    want = torch.nn.functional.cross_entropy(out.logits[:, 3:6].flatten(0, 1), ids[:, 3:6].ravel())
    torch.testing.assert_close(out.loss, want)


@pytest.mark.parametrize("name", ["diff_v1", "threshold"])
@torch.no_grad()
def test_saved_models_load_by_the_auto_classes(name, tmp_path):
    net, ids = encoder(name, tie_word_embeddings=True), token_ids()
    net.save_pretrained(tmp_path)
    assert "fill-mask" in (tmp_path / "README.md").read_text()
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert not loaded.config.is_causal
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert torch.equal(loaded(ids).logits, net(ids).logits)
    body = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(body(ids).last_hidden_state, net.model(ids).last_hidden_state)
    for auto, kind in (
        (AutoModelForTokenClassification, AntiphaseForTokenClassification),
        (AutoModelForQuestionAnswering, AntiphaseForQuestionAnswering),
    ):
        head = auto.from_pretrained(tmp_path)
        assert type(head) is kind
        assert torch.equal(head.model(ids).last_hidden_state, body(ids).last_hidden_state)


def test_heads_on_the_encoder_learn_what_follows():
    """Token classes that only the next token says, and answers that end where they start."""
    torch.manual_seed(0)
    ids = token_ids(B=8, T=6)
    tokens = AntiphaseForTokenClassification(
        config("diff_v1", is_causal=False, num_labels=2, initializer_range=0.02)
    )
    labels = (ids.roll(-1, 1) > 30).long()
    labels[:, -1] = -100
    optimizer = torch.optim.AdamW(tokens.parameters(), lr=5e-3)
    for _ in range(80):
        loss = tokens(ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    known = labels >= 0
    assert (tokens.eval()(ids).logits.argmax(-1) == labels)[known].float().mean() > 0.95
    answers = encoder("diff_v2", AntiphaseForQuestionAnswering)
    at = torch.tensor([1, 2, 3, 4, 5, 0, 1, 2])
    out = answers(ids, start_positions=at, end_positions=at)
    assert out.loss.isfinite()
    assert out.start_logits.shape == (8, 6)


def test_bidirectional_models_are_neither_causal_nor_cached():
    with pytest.raises(ValueError, match="is_causal, is_encoder_decoder: got False"):
        AntiphaseForCausalLM(config("standard", is_causal=False))
    with pytest.raises(ValueError, match=r"is_causal: got True, .* pass is_causal=False"):
        AntiphaseForMaskedLM(config("standard"))
    with pytest.raises(ValueError, match="sliding_window: got 4 with is_causal=False"):
        config("standard", is_causal=False, sliding_window=4)
    net = encoder("diff_v2", AntiphaseModel)
    assert net(token_ids()).past_key_values is None
    with pytest.raises(ValueError, match="use_cache: a bidirectional model"):
        net(token_ids(), use_cache=True)


def test_residual_dropout_and_biases():
    torch.manual_seed(0)
    net = AntiphaseForMaskedLM(
        config("diff_v1", is_causal=False, residual_dropout=0.5, mlp_bias=True, norm="layer")
    )
    assert net.model.layers[0].mlp.down_proj.bias is not None
    ids = token_ids()
    assert not torch.equal(net(ids).logits, net(ids).logits)
    net.eval()
    assert torch.equal(net(ids).logits, net(ids).logits)
    with pytest.raises(ValueError, match="residual_dropout: got 1"):
        config("standard", residual_dropout=1.0)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_mechanism_can_be_is_said_by_its_class(name):
    layer, x = small(name), torch.randn(2, 7, 64)
    if MECHANISMS[name].causal_only:
        with pytest.raises(ValueError, match="reads tokens in their order"):
            layer(x)
    else:
        assert layer(x).isfinite().all()
