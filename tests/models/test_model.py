"""Loading, saving, training and outputs, as of any Hugging Face model."""

import json

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)
from transformers.utils.hub import PushToHubMixin

from antiphase.models import AntiphaseForSequenceClassification
from tests.attention.cases import MAPPED, NAMES
from tests.models.tiny import VOCABULARY, config, left_padded, model, token_ids

each_mapped = pytest.mark.parametrize("name", MAPPED)
each = pytest.mark.parametrize("name", NAMES)
main = pytest.mark.parametrize("name", ["standard", "diff_v1", "diff_v2"])


@each
@torch.no_grad()
def test_save_load_same_logits(name, tmp_path):
    net, ids = model(name), token_ids()
    net.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is type(net)
    same = {"dtype": 0, "_name_or_path": 0}
    assert loaded.config.to_dict() | same == net.config.to_dict() | same
    assert torch.equal(loaded(ids).logits, net(ids).logits)
    assert isinstance(AutoModel.from_pretrained(tmp_path), type(net.model))


@each
def test_parameters_that_a_checkpoint_lacks_are_initialised(name, tmp_path):
    net = model(name)
    common = tuple(f"self_attn.{which}_proj." for which in "qkvo")
    own = {n for n in net.state_dict() if ".self_attn." in n and not any(c in n for c in common)}
    kept = {n: t for n, t in net.state_dict().items() if n not in own}
    net.save_pretrained(tmp_path, state_dict=kept)
    torch.manual_seed(1)
    loaded = type(net).from_pretrained(tmp_path).state_dict()
    for n, fresh in net.state_dict().items():
        if n in own and fresh.dim() > 1:  # drawn again
            assert loaded[n].std().item() == pytest.approx(fresh.std().item(), rel=0.2), n
        elif n in own and ".lam." in n:
            assert 0 < loaded[n].abs().max() < 0.6, n  # N(0, 0.1)
        else:  # loaded, or a constant
            assert torch.equal(loaded[n], fresh), n


FAST = ("diff_v1", "diff_v2", "low_rank_noise")  # one per kind of noise; the others are slow


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_overfit_one_batch(name):
    net, ids = model(name, initializer_range=0.02).train(), token_ids(4, 16)
    optimiser = torch.optim.AdamW(net.parameter_groups(0.0), lr=5e-3)
    for _ in range(120):
        loss = net(ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    # At the second token, the first is all that distinguishes the sequences.
    assert loss.item() < 0.05


@each
def test_every_parameter_has_a_gradient(name):
    net, ids = model(name).train(), token_ids()
    net(ids, labels=ids).loss.backward()
    for parameter_name, parameter in net.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


@each
def test_checkpointing_gives_the_same_gradients(name):
    ids, found = token_ids(), []
    for checkpointing in (False, True):
        net = model(name).train()
        if checkpointing:
            net.gradient_checkpointing_enable()
        net(ids, labels=ids).loss.backward()
        found.append([p.grad for p in net.parameters()])
    torch.testing.assert_close(*found)


@main
def test_loss_is_over_shifted_labels_without_the_ignored(name):
    net, ids = model(name), token_ids()
    labels = ids.clone()
    labels[:, :7] = -100
    out = net(ids, labels=labels)
    flat = torch.nn.functional.cross_entropy(
        out.logits[:, 6:-1].reshape(-1, VOCABULARY), ids[:, 7:].reshape(-1)
    )
    torch.testing.assert_close(out.loss, flat)
    torch.testing.assert_close(net(ids, logits_to_keep=2).logits, out.logits[:, -2:])


@each_mapped
@torch.no_grad()
def test_attentions_are_the_differences_and_hidden_states_surround_the_layers(name):
    net, ids = model(name), token_ids()
    out = net(ids, output_attentions=True, output_hidden_states=True, use_cache=False)
    assert len(out.attentions) == 2
    assert len(out.hidden_states) == 3
    layer = net.model.layers[1]
    rotary = net.model.rotary(out.hidden_states[0], torch.arange(19)[None])
    x = layer.input_layernorm(out.hidden_states[1])
    _, maps = layer.self_attn(x, causal=True, rotary=rotary, return_maps=True)
    torch.testing.assert_close(out.attentions[1], maps["difference"])
    torch.testing.assert_close(out.hidden_states[2], net.model(ids).last_hidden_state)
    assert isinstance(net(ids, return_dict=False), tuple)


@each
def test_embeddings_are_tied_when_requested(name):
    net = model(name, tie_word_embeddings=True)
    assert net.lm_head.weight is net.model.embed_tokens.weight
    assert model(name).lm_head.weight is not model(name).model.embed_tokens.weight


@each
def test_weight_decay_skips_lambdas_gains_and_embeddings(name):
    net = model(name, tie_word_embeddings=True)
    decayed, kept = net.parameter_groups(0.1)
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    names = {id(p): n for n, p in net.named_parameters()}
    matrices = ("_proj.weight", "rnn.weight_ih_l0", "rnn.weight_hh_l0", "convolution.weight")
    assert all(names[id(p)].endswith(matrices) for p in decayed["params"])
    assert not any(names[id(p)].endswith(matrices) for p in kept["params"])
    assert len(decayed["params"]) + len(kept["params"]) == len(names)


@each
@torch.no_grad()
def test_a_bf16_model_keeps_lambdas_gains_and_logits_in_fp32(name, tmp_path):
    def kept(parameter_name, p):
        own = p.dim() == 1 or parameter_name.endswith("convolution.weight")
        return "self_attn" in parameter_name and own and "bias" not in parameter_name

    net = model(name)
    net.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for narrow in (loaded, model(name).to(torch.bfloat16)):
        for parameter_name, p in narrow.named_parameters():
            wide = kept(parameter_name, p)
            assert p.dtype == (torch.float32 if wide else torch.bfloat16), parameter_name
        logits = narrow(token_ids()).logits
        assert logits.dtype == torch.bfloat16
        if name != "top_k":  # rounding may choose other keys
            assert (logits.float() - net(token_ids()).logits).abs().mean() < 0.1
    loaded.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", dtype=torch.float32)
    for (parameter_name, p), q in zip(net.named_parameters(), again.parameters(), strict=True):
        if kept(parameter_name, p):
            assert torch.equal(p, q), parameter_name


@pytest.mark.parametrize(
    "fields",
    [
        {"position": "sinusoidal", "norm": "layer", "feed_forward": "relu"},
        {"position": "none"},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e3}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
        {"attention_bias": True, "head_dim": 16},
    ],
    ids=["2017", "no positions", "linear rope", "yarn", "bias and head_dim"],
)
@pytest.mark.parametrize("name", ["standard", "diff_v1", "low_dim_noise", "low_rank_noise"])
@torch.no_grad()
def test_other_norms_feed_forwards_and_positions(name, fields, tmp_path):
    net, ids = model(name, **fields), token_ids()
    net.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(ids).logits, net(ids).logits)
    padded, mask = left_padded(ids, [19, 9, 4])
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    got = net(padded, attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(got[1, -9:], net(ids[1:2, -9:]).logits[0], atol=2e-5, rtol=1e-4)
    back = ids[:, torch.arange(18, -1, -1)]
    unordered = torch.allclose(net(back).logits[:, -1], net(ids).logits[:, -1], atol=1e-4)
    assert not unordered


@torch.no_grad()
def test_a_classifier_uses_the_last_token_that_is_not_padding():
    torch.manual_seed(0)
    net = AntiphaseForSequenceClassification(config("diff_v1", num_labels=3)).eval()
    ids = token_ids()
    padded = torch.nn.functional.pad(ids, (0, 4))
    mask = (padded != 0).long()
    want = net(ids).logits
    assert want.shape == (3, 3)
    got = net(padded, attention_mask=mask)
    torch.testing.assert_close(got.logits, want, atol=1e-5, rtol=1e-4)
    assert net(ids, labels=torch.tensor([0, 2, 1])).loss.isfinite()


def test_auto_classes_know_the_name(tmp_path):
    cfg = config("diff_v1", num_labels=2)
    cfg.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).attention == "diff_v1"
    assert AutoModelForSequenceClassification.from_config(cfg).config.num_labels == 2
    assert json.loads((tmp_path / "config.json").read_text())["intermediate_size"] == 160


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "fused_cpu", "eager"])
@torch.no_grad()
def test_the_backend_is_chosen_as_hugging_face_does(backend):
    net = model("diff_v1")
    want = net(token_ids()).logits
    net.set_attn_implementation(backend)
    assert net.config._attn_implementation == backend
    torch.testing.assert_close(net(token_ids()).logits, want, atol=1e-5, rtol=1e-4)
    created = AutoModelForCausalLM.from_config(net.config, attn_implementation=backend)
    assert created.config._attn_implementation == backend


def test_an_unknown_backend_is_rejected():
    with pytest.raises(ValueError, match=r"flash_attention_9.* allowed are auto, reference"):
        AutoModelForCausalLM.from_config(config("diff_v1"), attn_implementation="flash_attention_9")


def test_a_card_is_saved_once_and_pushed(tmp_path, monkeypatch):
    model("diff_v1").save_pretrained(tmp_path)
    card = tmp_path / "README.md"
    text = card.read_text()
    assert "`diff_v1`" in text
    assert "- differential-attention" in text
    assert "4 heads, 8 maps" in text
    card.write_text("This model card has been automatically generated.")  # as push_to_hub does
    monkeypatch.setattr(PushToHubMixin, "_upload_modified_files", lambda *args, **kwargs: None)
    model("diff_v1")._upload_modified_files(tmp_path)
    assert card.read_text() == text
    card.write_text("mine")
    model("diff_v1").save_pretrained(tmp_path)
    assert card.read_text() == "mine"


@main
@torch.no_grad()
def test_a_model_created_in_bf16_keeps_lambdas_gains_and_rope_in_fp32(name):
    created = AutoModelForCausalLM.from_config(config(name), dtype=torch.bfloat16)
    cast = model(name).bfloat16()
    for net in (created, cast):
        for parameter_name, p in net.named_parameters():
            vector = "self_attn" in parameter_name and p.dim() == 1
            assert p.dtype == (torch.float32 if vector else torch.bfloat16), parameter_name
        exact = model(name).model.rotary.by_width[0].inv_freq
        assert torch.equal(net.model.rotary.by_width[0].inv_freq, exact)


def test_a_classifiers_card_says_so(tmp_path):
    AntiphaseForSequenceClassification(config("diff_v1")).save_pretrained(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "text-classification" in text
    assert "AutoModelForSequenceClassification" in text
    model("diff_v1").save_pretrained(tmp_path / "other", is_main_process=False)
    assert not (tmp_path / "other" / "README.md").exists()
