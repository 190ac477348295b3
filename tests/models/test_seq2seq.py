"""The encoder-decoder: roles of mechanisms, masks, caches, generation, labels, saving."""

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    DynamicCache,
    EncoderDecoderCache,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from antiphase.attention import MECHANISMS
from antiphase.models import (
    AntiphaseForCausalLM,
    AntiphaseForConditionalGeneration,
    AntiphaseSeq2SeqConfig,
    transformer_2017,
)
from antiphase.models.config_checks import can_be_bidirectional, can_be_cross
from tests.attention.cases import NAMES, SMALL, small
from tests.models.tiny import left_padded, token_ids

CLOSE = {"atol": 2e-5, "rtol": 1e-4}
CROSS = [name for name in NAMES if can_be_cross(MECHANISMS[name])]
PADDED = [
    "standard",
    "diff_v1",
    "linear",
    "fixed_noise",
    "threshold",
    "grouped_latent",
    "dint",
    "delta",
    "gru",
    "lstm",
]
INDEPENDENT = [name for name in CROSS if not small(name).mixes_sequences]


def config(name="standard", **fields):
    sizes = {
        "attention": name,
        "vocab_size": 61,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "attention_options": SMALL.get(name, {}),
        "initializer_range": 0.1,  # large enough for differences to show
        "pad_token_id": 0,
        "eos_token_id": 2,
    }
    return AntiphaseSeq2SeqConfig(**{**sizes, **fields})


def model(name="standard", **fields):
    torch.manual_seed(0)
    return AntiphaseForConditionalGeneration(config(name, **fields)).eval()


def original(name="standard", **fields):
    """Return a small 2017 Transformer."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 64, "num_attention_heads": 8}
    options = {"attention_options": SMALL.get(name, {})}
    cfg = transformer_2017("nano", name, **{**sizes, **options, **fields})
    return AntiphaseForConditionalGeneration(cfg).eval()


def pair():
    """Return the encoder's and the decoder's tokens."""
    return token_ids(B=3, T=11), token_ids(B=3, T=7, seed=2)


@pytest.mark.parametrize("role", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("name", NAMES)
def test_every_mechanism_trains_in_every_role_or_says_why_not(name, role):
    options = SMALL.get(name, {})
    fields = {
        "encoder": {"encoder_attention": name, "encoder_attention_options": options},
        "decoder": {"attention": name, "attention_options": options},
        "cross": {"cross_attention": name, "cross_attention_options": options},
    }[role]
    roles = dict.fromkeys(("attention", "encoder_attention", "cross_attention"), "standard")
    kind = MECHANISMS[name]
    if role == "encoder" and not can_be_bidirectional(kind):
        with pytest.raises(ValueError, match=f"encoder_attention: got '{name}', .* in their order"):
            config(**{**roles, **fields})
        return
    if role == "cross" and not can_be_cross(kind):
        why = "in their order" if kind.causal_only else "depends on other queries"
        with pytest.raises(ValueError, match=f"cross_attention: got '{name}', .*{why}"):
            config(**{**roles, **fields})
        return
    torch.manual_seed(0)
    source, target = pair()
    net = AntiphaseForConditionalGeneration(config(**{**roles, **fields}))
    mask = torch.ones_like(source)
    mask[0, 8:] = 0
    out = net(source, mask, labels=target)
    out.loss.backward()
    assert out.logits.isfinite().all()
    grads = {n: p.grad for n, p in net.named_parameters() if p.requires_grad}
    assert not [n for n, grad in grads.items() if grad is None or not grad.isfinite().all()]
    of_role = {"encoder": "encoder.layers", "decoder": "self_attn", "cross": "cross_attn"}[role]
    assert any(grad.any() for n, grad in grads.items() if of_role in n and "o_proj" in n)


@pytest.mark.parametrize("name", INDEPENDENT)
@torch.no_grad()
def test_cached_calls_give_the_logits_of_one_call(name):
    net, (source, target) = model(name), pair()
    source, mask = left_padded(source, [11, 7, 4])
    want = net(source, mask, decoder_input_ids=target, use_cache=False).logits
    cache, encoded = net.model.new_cache(), net.get_encoder()(source, mask)
    calls = []
    net.model.decoder.layers[0].cross_attn.register_forward_hook(
        lambda layer, given, out: calls.append(given[1].shape[1])
    )
    assert not any(cache.is_updated.values())
    got = [
        net(
            attention_mask=mask,
            encoder_outputs=encoded,
            decoder_input_ids=target[:, part],
            past_key_values=cache,
        ).logits
        for part in (slice(0, 3), slice(3, 4), slice(4, 7))
    ]
    torch.testing.assert_close(torch.cat(got, 1), want, **CLOSE)
    assert calls == [11, 0, 0]  # keys and values of the encoder's output are computed once
    assert cache.get_seq_length() == 7
    assert cache.cross_attention_cache.get_seq_length() == 11
    assert cache.is_updated == {0: True, 1: True}
    cache.reset()
    assert cache.is_updated == {0: False, 1: False}
    again = net(source, mask, decoder_input_ids=target, past_key_values=cache).logits
    torch.testing.assert_close(again, want, **CLOSE)


@pytest.mark.parametrize("name", INDEPENDENT)
def test_cached_beam_search_is_the_uncached_one(name):
    net = model(name)
    source, mask = left_padded(pair()[0], [11, 7, 4])
    options = {"num_beams": 3, "max_new_tokens": 6, "num_return_sequences": 2, "do_sample": False}
    options |= {"output_scores": True, "return_dict_in_generate": True}
    with_cache = net.generate(source, attention_mask=mask, **options, use_cache=True)
    without = net.generate(source, attention_mask=mask, **options, use_cache=False)
    assert torch.equal(with_cache.sequences, without.sequences)
    torch.testing.assert_close(with_cache.sequences_scores, without.sequences_scores, **CLOSE)


@pytest.mark.parametrize("attention", ["dint", "delta", "gru", "lstm", "foreign_noise"])
def test_other_decoders_decode_with_their_cache(attention):
    """Self-attention with a state, cross-attention and encoder of another mechanism."""
    options = {"form": "random"} if attention == "foreign_noise" else {}
    net = model(
        attention,
        attention_options=options,
        encoder_attention="diff_v1",
        cross_attention="fixed_noise",
    )
    source = pair()[0]
    options = {"num_beams": 2, "max_new_tokens": 5}
    cached = net.generate(source, **options, use_cache=True)
    assert torch.equal(cached, net.generate(source, **options, use_cache=False))


@torch.no_grad()
def test_greedy_generation_takes_the_most_probable_token():
    net, (source, _) = original(), pair()
    out = net.generate(source, max_new_tokens=5, min_new_tokens=5)
    assert out.shape == (3, 6)
    assert (out[:, 0] == 0).all()  # the start token
    logits = net(source, decoder_input_ids=out[:, :-1]).logits
    logits[..., 2] = -torch.inf  # no end before five tokens
    assert torch.equal(logits.argmax(-1), out[:, 1:])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("make", [model, original], ids=["rope", "2017"])
@pytest.mark.parametrize("name", PADDED)
@torch.no_grad()
def test_padding_of_both_sides_changes_no_logits(name, make, side):
    others = {} if name in CROSS else {"encoder_attention": "diff_v1", "cross_attention": "linear"}
    net, (source, target) = make(name, **others), pair()
    if name == "threshold":  # its norm divides by small numbers, which rounding changes
        net = net.double()
    sources, targets = [11, 6, 3], [7, 4, 2]
    padded, masks = {}, {}
    for key, ids, lengths in (("source", source, sources), ("target", target, targets)):
        padded[key], masks[key] = torch.zeros_like(ids), torch.zeros_like(ids)
        for i, n in enumerate(lengths):
            place = slice(-n, None) if side == "left" else slice(0, n)
            padded[key][i, place], masks[key][i, place] = ids[i, :n], 1
    got = net(
        padded["source"],
        masks["source"],
        decoder_input_ids=padded["target"],
        decoder_attention_mask=masks["target"],
    ).logits
    for i in range(3):
        alone = net(
            source[i : i + 1, : sources[i]], decoder_input_ids=target[i : i + 1, : targets[i]]
        )
        torch.testing.assert_close(got[i][masks["target"][i].bool()], alone.logits[0], **CLOSE)


@torch.no_grad()
def test_cross_attention_does_not_see_the_encoders_padding():
    net, (source, target) = model("diff_v1"), pair()
    mask = torch.ones_like(source)
    mask[:, 8:] = 0
    want = net(source, mask, decoder_input_ids=target, output_attentions=True)
    assert [A.shape for A in want.cross_attentions] == [(3, 4, 7, 11)] * 2
    assert all((A[..., 8:] == 0).all() for A in want.cross_attentions)
    source[:, 8:] = 5
    got = net(source, mask, decoder_input_ids=target).logits
    torch.testing.assert_close(got, want.logits, **CLOSE)
    assert not torch.allclose(net(source, decoder_input_ids=target).logits, got, atol=1e-3)


@pytest.mark.parametrize("name", INDEPENDENT)
@torch.no_grad()
def test_the_decoder_sees_no_future_and_all_of_the_encoder(name):
    net, (source, target) = model(name), pair()
    want = net(source, decoder_input_ids=target).logits
    changed = target.clone()
    changed[:, 4] = changed[:, 4] % 60 + 1
    difference = (net(source, decoder_input_ids=changed).logits - want).abs().amax((0, 2))
    assert (difference[:4] < 1e-6).all()
    assert difference[4] > 1e-4
    source[:, -1] = source[:, -1] % 60 + 1
    difference = (net(source, decoder_input_ids=target).logits - want).abs().amax((0, 2))
    assert (difference > 0).any() if name in ("top_k", "threshold") else (difference > 0).all()


@pytest.mark.parametrize("name", ["standard", "diff_v2"])
@torch.no_grad()
def test_attention_functions_of_transformers_agree(name):
    net, (source, target) = model(name), pair()
    source, mask = left_padded(source, [11, 7, 4])
    want = net(source, mask, decoder_input_ids=target).logits
    for implementation in ("sdpa", "reference"):
        net.set_attn_implementation(implementation)
        assert net.model.encoder.config._attn_implementation == implementation
        got = net(source, mask, decoder_input_ids=target).logits
        torch.testing.assert_close(got, want, **CLOSE)


def test_labels_become_the_decoders_inputs():
    net, (source, target) = original(), pair()
    labels = target.clone()
    labels[0, 5:] = -100
    shifted = net.prepare_decoder_input_ids_from_labels(labels)
    assert (shifted[:, 0] == 0).all()
    assert torch.equal(shifted[1:, 1:], target[1:, :-1])
    assert shifted[0].tolist() == [0, *target[0, :5].tolist(), 0]
    out = net(source, labels=labels)
    assert out.past_key_values is None
    want = net(source, decoder_input_ids=shifted).logits
    torch.testing.assert_close(out.logits, want, **CLOSE)
    loss = torch.nn.functional.cross_entropy(want.flatten(0, 1), labels.ravel())
    torch.testing.assert_close(out.loss, loss)


@pytest.mark.parametrize("make", [model, original], ids=["modern", "2017"])
def test_one_batch_is_overfitted_and_generated(make):
    fields = {"initializer_range": 0.02} if make is model else {"residual_dropout": 0.0}
    name = "diff_v2" if make is model else "standard"
    net = make(name, **fields).train()
    source, target = token_ids(B=4, T=8), token_ids(B=4, T=6, seed=5).clamp_min(3)
    target[:, -1] = 2  # the end token
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(80):
        loss = net(source, labels=target).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss < 0.05
    for beams in (1, 3):
        out = net.eval().generate(source, max_new_tokens=8, num_beams=beams)
        assert torch.equal(out[:, 1:], target)


def test_the_trainer_trains_and_generates(tmp_path):
    net = model("diff_v2", num_hidden_layers=1)
    source, target = token_ids(B=6, T=8), token_ids(B=6, T=5, seed=2)
    rows = [{"input_ids": s, "labels": t} for s, t in zip(source, target, strict=True)]
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=3,
        per_device_eval_batch_size=3,
        gradient_accumulation_steps=2,
        predict_with_generate=True,
        generation_max_length=7,
        generation_num_beams=2,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    before = net.lm_head.weight.clone()
    trainer = Seq2SeqTrainer(net, arguments, train_dataset=rows, eval_dataset=rows)
    assert trainer.train().training_loss > 0
    assert not torch.equal(net.lm_head.weight, before)
    predicted = trainer.predict(rows)
    want = net.generate(source, max_length=7, num_beams=2)
    assert predicted.predictions.shape[0] == 6
    assert predicted.predictions[:, : want.shape[1]].tolist() == want.tolist()
    assert predicted.metrics["test_loss"] == pytest.approx(
        net(source, labels=target).loss.item(), rel=1e-4
    )


def test_label_smoothing_is_transformers_and_a_checkpoint_resumes(tmp_path):
    source, target = token_ids(B=6, T=8), token_ids(B=6, T=5, seed=2)
    rows = [
        {"input_ids": source[i, : 8 - i].tolist(), "labels": target[i, : 5 - i % 3].tolist()}
        for i in range(6)
    ]
    words = Tokenizer(WordLevel({str(n): n for n in range(61)}, unk_token="1"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0")

    def trainer(folder, steps, **options):
        net = model("diff_v2", num_hidden_layers=1)
        arguments = Seq2SeqTrainingArguments(
            str(tmp_path / folder),
            max_steps=steps,
            lr_scheduler_type="constant",
            per_device_train_batch_size=3,
            label_smoothing_factor=0.1,
            logging_steps=1,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            **options,
        )
        collator = DataCollatorForSeq2Seq(tokenizer, net)
        return Seq2SeqTrainer(net, arguments, train_dataset=rows, data_collator=collator)

    first = trainer("run", 2, save_steps=2)
    batch = first.data_collator([dict(row) for row in rows])
    labels = batch["labels"]
    assert (labels == -100).any()
    assert torch.equal(
        batch["decoder_input_ids"], first.model.prepare_decoder_input_ids_from_labels(labels)
    )
    with torch.no_grad():
        loss = first.compute_loss(first.model, batch)
        log_p = first.model(**batch).logits.log_softmax(-1)[labels != -100]
    told = log_p.gather(-1, labels[labels != -100][:, None]).mean()
    torch.testing.assert_close(loss, -(0.9 * told + 0.1 * log_p.mean()))

    first.train()
    resumed, whole = trainer("run", 4, save_strategy="no"), trainer("whole", 4, save_strategy="no")
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    whole.train()
    assert resumed.state.global_step == 4
    assert not torch.equal(whole.model.lm_head.weight, first.model.lm_head.weight)
    for name, weight in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], weight, msg=name)


@torch.no_grad()
def test_saved_models_load_by_the_auto_classes(tmp_path):
    net = model("diff_v1", cross_attention="linear", encoder_layers=1)
    source, target = pair()
    want = net(source, decoder_input_ids=target).logits
    net.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "AutoModelForSeq2SeqLM" in card
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(loaded) is AntiphaseForConditionalGeneration
    assert loaded.config.to_dict() == net.config.to_dict() | {
        name: loaded.config.to_dict()[name]
        for name in ("_name_or_path", "architectures", "dtype")
        if name in loaded.config.to_dict()
    }
    assert loaded.lm_head.weight is loaded.model.encoder.embed_tokens.weight
    assert loaded.lm_head.weight is loaded.model.decoder.embed_tokens.weight
    assert torch.equal(loaded(source, decoder_input_ids=target).logits, want)
    body = AutoModel.from_pretrained(tmp_path)
    states = body(source, decoder_input_ids=target).last_hidden_state
    assert torch.equal(states @ loaded.lm_head.weight.T, want)
    bf16 = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert bf16.model.encoder.layers[0].self_attn.lam.q1.dtype == torch.float32
    assert bf16.model.decoder.layers[0].self_attn.norm.gain.dtype == torch.float32
    assert bf16.model.decoder.layers[0].cross_attn.q_proj.weight.dtype == torch.bfloat16


@torch.no_grad()
def test_embeddings_are_tied_or_not_and_resized():
    net, (source, target) = model(), pair()
    net.resize_token_embeddings(70)
    assert net(source, decoder_input_ids=target).logits.shape[-1] == 70
    assert net.model.encoder.embed_tokens.weight is net.lm_head.weight
    loose = model(tie_word_embeddings=False)
    weights = {id(m.weight) for m in (loose.lm_head, *embeddings(loose))}
    assert len(weights) == 3
    with pytest.raises(ValueError, match="embeddings of their own"):
        loose.resize_token_embeddings(70)


def embeddings(net):
    return net.model.encoder.embed_tokens, net.model.decoder.embed_tokens


def test_gradient_checkpointing_reaches_the_encoder():
    source, target = pair()
    grads = []
    for kwargs in (None, {"use_reentrant": False}, {"use_reentrant": True}):
        net = model("diff_v1").train()
        if kwargs is not None:
            net.gradient_checkpointing_enable(kwargs)
        net(source, labels=target).loss.backward()
        grads.append(net.model.encoder.layers[0].self_attn.q_proj.weight.grad)
    assert grads[0].any()
    for grad in grads[1:]:
        torch.testing.assert_close(grad, grads[0])


@pytest.mark.parametrize("name", ["diff_v1", "diff_v2", "grouped", "linear"])
def test_mechanisms_have_equal_parameters(name):
    counts = [model(n).num_parameters() for n in ("standard", name)]
    assert abs(counts[1] / counts[0] - 1) < 0.01


def test_a_window_is_one_of_the_decoder_alone():
    net, (source, target) = model(sliding_window=3), pair()
    assert net.model.encoder.config.sliding_window is None
    assert net.model.decoder.layers[0].cross_attn.window is None
    out = net.generate(source, max_new_tokens=8, num_beams=2)
    assert torch.equal(out, net.generate(source, max_new_tokens=8, num_beams=2, use_cache=False))
    assert net(source, labels=target).loss.isfinite()


@torch.no_grad()
def test_bad_inputs_raise():
    net, (source, target) = model(), pair()
    with pytest.raises(ValueError, match="input_ids, inputs_embeds, encoder_outputs: give one"):
        net(decoder_input_ids=target)
    with pytest.raises(ValueError, match="decoder_input_ids, decoder_inputs_embeds, labels: give"):
        net(source)
    with pytest.raises(ValueError, match="expected an EncoderDecoderCache of two dynamic"):
        net(source, decoder_input_ids=target, past_key_values=DynamicCache())
    with pytest.raises(ValueError, match="cache_implementation: got 'static'"):
        net.generate(source, cache_implementation="static", max_new_tokens=3)
    with pytest.raises(ValueError, match="context: cross-attention needs the encoder's output"):
        net.get_decoder()(target)
    nothing = model(pad_token_id=None)
    with pytest.raises(ValueError, match="decoder_start_token_id, pad_token_id: got None and None"):
        nothing(source, labels=target)
    plain = EncoderDecoderCache(DynamicCache(), DynamicCache())
    got = net(source, decoder_input_ids=target, past_key_values=plain).logits
    torch.testing.assert_close(got, net(source, decoder_input_ids=target).logits, **CLOSE)


def test_bad_configurations_raise():
    for fields, message in (
        ({"encoder_layers": 0}, "encoder_layers: got 0"),
        ({"encoder_layrs": 2}, "did you mean 'encoder_layers'"),
        ({"is_causal": False}, "is_causal, is_encoder_decoder: got .* False"),
        ({"is_encoder_decoder": False}, "is_causal, is_encoder_decoder: got"),
        ({"cross_attention": "standrd"}, "did you mean 'standard'"),
        ({"cross_attention_options": {"rank": 2}}, "rank"),
        ({"norm_position": "both"}, "norm_position: got 'both', allowed are pre, post"),
    ):
        with pytest.raises(ValueError, match=message):
            config(**fields)
    with pytest.raises(ValueError, match="size: got 'bas', allowed are nano, base, big"):
        transformer_2017("bas")
    with pytest.raises(ValueError, match="use AntiphaseForMaskedLM or AntiphaseForConditional"):
        AntiphaseForCausalLM(config())
    assert config().encoder_config().is_causal is False


def test_a_default_that_cannot_have_a_role_is_named_as_one():
    for name, fields, message in (
        ("dint", {}, r"cross_attention: not given, .* decoder's 'dint', .* set cross_attention to"),
        ("gru", {}, r"encoder_attention: not given, .* decoder's 'gru', .* set encoder_attention"),
        ("gru", {"encoder_attention": "sink"}, r"cross_attention: not given, .* 'gru', .* set "),
        ("dint", {"cross_attention": "dint"}, r"cross_attention: got 'dint', .*; allowed are "),
    ):
        with pytest.raises(ValueError, match=message):
            transformer_2017("nano", name, **fields)
    cfg = transformer_2017("nano", "dint", cross_attention="diff_v1")
    assert (cfg.encoder_attention, cfg.cross_attention) == ("dint", "diff_v1")


def test_the_default_options_of_a_role_are_those_of_the_same_mechanism():
    cfg = config("top_k", attention_options={"k": 3}, cross_attention="standard")
    assert cfg.encoder_attention_options == {"k": 3}
    assert cfg.cross_attention_options == {}
