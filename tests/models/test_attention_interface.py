"""attn_implementation="antiphase": other libraries' models on our kernels, against their own."""

import copy

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    BloomForCausalLM,
    DeepseekV4Config,
    DeepseekV4ForCausalLM,
    DeepseekV32Config,
    DeepseekV32ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    PegasusXConfig,
    PegasusXForConditionalGeneration,
    SwinConfig,
    SwinModel,
)

from antiphase.models import attention_interface
from antiphase.models.attention_interface import AUTOMATIC, NAME, use_fused_attention
from tests.pretrained.small import FAMILIES, SIZES, made

T = 20


def gemma2():
    return Gemma2ForCausalLM(Gemma2Config(**SIZES, sliding_window=6, attn_logit_softcapping=2.0))


def gpt_oss():
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
    return GptOssForCausalLM(GptOssConfig(**SIZES, **experts, sliding_window=6))


OTHERS = {"gemma2": gemma2, "gpt_oss": gpt_oss}  # scores under a cap; a learned sink


def model_of(name):
    if name in FAMILIES:
        return made(name)
    torch.manual_seed(0)
    model = OTHERS[name]().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model


def twins(name):
    """Return a model with eager attention, and the same on our kernels."""
    own = model_of(name)
    own.set_attn_implementation("eager")
    ours = copy.deepcopy(own)
    ours.set_attn_implementation(NAME)
    return own, ours


def tokens(B=2, T=T, vocabulary=257):
    return torch.randint(1, vocabulary, (B, T), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of the op."""
    found = []
    real = attention_interface.attention

    def counted(*args, **kwargs):
        found.append(kwargs)
        return real(*args, **kwargs)

    monkeypatch.setattr(attention_interface, "attention", counted)
    return found


@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
def test_logits_and_gradients_are_those_of_eager_attention(name, calls):
    own, ours = twins(name)
    ids = tokens()
    for model in (own, ours):
        model.train()
        model(input_ids=ids, labels=ids).loss.backward()
    assert len(calls) == 2  # one per layer
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, own(ids).logits, rtol=1e-4, atol=1e-4)
    for (name_, a), b in zip(own.named_parameters(), ours.parameters(), strict=True):
        if a.grad is not None:  # an expert that no token chose has none
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-4, msg=name_)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
def test_padding(name, side):
    own, ours = twins(name)
    ids, mask = tokens(), torch.ones(2, T, dtype=torch.int64)
    mask[0, slice(0, 5) if side == "left" else slice(T - 5, T)] = 0
    with torch.no_grad():
        expected, got = (m(ids, attention_mask=mask).logits[mask.bool()] for m in (own, ours))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gemma2"])
def test_generation(name, cache):
    own, ours = twins(name)
    ids = tokens(T=7)
    options = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": cache}
    expected, got = (
        m.generate(ids, return_dict_in_generate=True, output_logits=True, **options)
        for m in (own, ours)
    )
    assert torch.equal(got.sequences, expected.sequences)
    for a, b in zip(got.logits, expected.logits, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_packed_sequences():
    own, ours = twins("llama")
    ids = tokens(B=1)
    positions = torch.cat([torch.arange(8), torch.arange(T - 8)])[None]
    with torch.no_grad():
        got = ours(ids, position_ids=positions, use_cache=False).logits
        parts = [own(part).logits for part in ids.split([8, T - 8], dim=1)]
    torch.testing.assert_close(got, torch.cat(parts, dim=1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("use_cache", [False, True])
def test_autocast(use_cache, calls):
    own, ours = twins("llama")
    options = {"labels": tokens(), "use_cache": use_cache}
    for model in (own, ours):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(tokens(), **options)
        out.loss.backward()
        assert out.logits.dtype == torch.bfloat16
        model.logits = out.logits.float()
    assert len(calls) == 2
    torch.testing.assert_close(ours.logits, own.logits, rtol=0.05, atol=0.05)
    for a, b in zip(own.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=0.1, atol=0.02)


def test_an_encoder_sees_the_future():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    own = BertForMaskedLM(BertConfig(vocab_size=257, num_hidden_layers=2, **sizes)).eval()
    ours = copy.deepcopy(own)
    own.set_attn_implementation("eager")
    ours.set_attn_implementation(NAME)
    ids, mask = tokens(), torch.ones(2, T, dtype=torch.int64)
    mask[0, -5:] = 0
    for given in (None, mask):
        with torch.no_grad():
            expected, got = (m(ids, attention_mask=given).logits for m in (own, ours))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_what_the_op_does_not_have_goes_to_sdpa(calls):
    layer = torch.nn.Module()
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    bias = torch.randn(1, 2, 5, 5)
    got, _ = attention_interface.attend(layer, q, k, v, None, position_bias=bias, is_causal=False)
    assert not calls
    expected = torch.softmax(q @ k.mT / 2 + bias, dim=-1) @ v
    torch.testing.assert_close(got.transpose(1, 2), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_tested_families_are_changed_without_being_asked(family):
    model = made(family)
    use_fused_attention(model)
    assert model.config._attn_implementation == NAME
    assert model.config.model_type in AUTOMATIC


def test_other_models_are_not_changed():
    model = made("llama")
    model.set_attn_implementation("eager")
    use_fused_attention(model)
    assert model.config._attn_implementation == "eager"
    deepseek = sparse()
    assert deepseek.config._attn_implementation == "sdpa"
    use_fused_attention(deepseek)
    assert deepseek.config._attn_implementation == "sdpa"


def bloom():
    return BloomForCausalLM(BloomConfig(vocab_size=257, hidden_size=32, n_layer=1, n_head=4))


def pegasus():
    """Its decoder says that it is not causal."""
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = PegasusXConfig(vocab_size=257, d_model=32, **sizes, **heads)
    return PegasusXForConditionalGeneration(config)


@pytest.mark.parametrize("make", [bloom, pegasus])
def test_a_model_that_computes_attention_by_itself_raises(make, tmp_path):
    make().save_pretrained(tmp_path)
    model = type(make()).from_pretrained(tmp_path, attn_implementation=NAME)
    with pytest.raises(ValueError, match=r"compute attention by themselves.*use 'eager'"):
        model(input_ids=tokens(), **({"decoder_input_ids": tokens()} if make is pegasus else {}))


def sparse():
    moe = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2}
    ranks = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16}
    index = {"index_n_heads": 2, "index_head_dim": 32, "index_topk": 5, "v_head_dim": 24}
    groups = {"n_group": 1, "topk_group": 1}
    sizes = {name: SIZES[name] for name in SIZES if name not in ("head_dim", "num_key_value_heads")}
    heads = {"num_key_value_heads": 4}
    config = DeepseekV32Config(**sizes, **heads, **moe, **ranks, **index, **groups)
    return DeepseekV32ForCausalLM(config).eval()


def test_selected_keys_raise():
    model = sparse()
    model.set_attn_implementation(NAME)
    with pytest.raises(ValueError, match=r"selects keys .*use 'eager' or 'sdpa'"):
        model(tokens())


def test_a_bias_behind_the_mask():
    """The layers of DeepSeek-V4 append the bias of compressed keys to the mask."""
    torch.manual_seed(0)
    config = DeepseekV4Config(
        **{**SIZES, "num_key_value_heads": 1, "num_hidden_layers": 2},
        layer_types=["compressed_sparse_attention", "heavily_compressed_attention"],
        q_lora_rank=16,
        index_n_heads=2,
        index_head_dim=16,
        index_topk=4,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
    )
    own = DeepseekV4ForCausalLM(config).eval()
    ours = copy.deepcopy(own)
    own.set_attn_implementation("eager")
    ours.set_attn_implementation(NAME)
    ids = tokens(T=40)
    with torch.no_grad():
        expected, got = own(ids).logits, ours(ids).logits
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_a_learned_mask_goes_to_sdpa(calls):
    sizes = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "window_size": 4}
    own = SwinModel(SwinConfig(**sizes, depths=[2, 2], num_heads=[2, 4])).eval()
    ours = copy.deepcopy(own)
    own.set_attn_implementation("eager")
    ours.set_attn_implementation(NAME)
    image = torch.randn(1, 3, 32, 32)
    results = [m(image).pooler_output for m in (own, ours)]
    for out in results:
        out.square().sum().backward()
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
    for a, b in zip(own.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-4)
    assert not calls


def test_autocast_leaves_fp64_alone():
    own, ours = (model.double() for model in twins("llama"))
    with torch.autocast("cpu", torch.bfloat16):
        expected, got = own(tokens()).logits, ours(tokens()).logits
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)


def test_meta_device():
    _, ours = twins("llama")
    assert ours.to("meta")(tokens().to("meta")).logits.shape == (2, T, 257)


def test_a_compiled_model_is_one_graph():
    own, ours = twins("llama")
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        got = compiled(tokens(), use_cache=False).logits
        torch.testing.assert_close(got, own(tokens()).logits, rtol=1e-4, atol=1e-4)


def test_the_name_is_not_saved_with_the_model(tmp_path):
    model = made("llama")
    use_fused_attention(model)
    model.save_pretrained(tmp_path)
    assert NAME not in (tmp_path / "config.json").read_text()
    assert type(model).from_pretrained(tmp_path).config._attn_implementation == "sdpa"
