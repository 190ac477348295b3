"""DEX against its formula, by hand; which heads; what is trained; what is rejected."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import (
    BitsAndBytesConfig,
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
)

from antiphase import AntiphaseForCausalLM, preset
from antiphase.analysis import capture
from antiphase.pretrained import DexConfig, fold, unchain
from antiphase.pretrained.dex import DexLambda, operators
from antiphase.pretrained.head_selection import head_entropy, head_importance, top_heads
from antiphase.pretrained.structure import attention_parts, trainable
from tests.pretrained.small import FAMILIES, SIZES, llama, made, sequences


@pytest.mark.parametrize("family", FAMILIES)
def test_step_0_is_the_base_model(family):
    model, ids = made(family), sequences()
    with torch.no_grad():
        before = model(ids).logits
        unchained = unchain(model, calibration=ids)
        assert torch.equal(unchained(ids).logits, before)
        unchained.step = 50
        assert not torch.allclose(unchained(ids).logits, before)


def test_a_layer_is_the_formula():
    model, ids = made("llama").double(), sequences()
    parts = attention_parts(model)
    seen = {}
    hook = parts[1].module.o_proj.register_forward_pre_hook(lambda m, args: seen.update(o=args[0]))
    with torch.no_grad():
        model(ids)
    hook.remove()
    W_O = parts[1].module.o_proj.weight.detach().clone()
    unchain(model, DexConfig(heads=[[0], [1, 3]], anneal=10))
    layer = operators(model)["model.layers.1.self_attn.o_proj"]
    with torch.no_grad():
        layer.lam.learn.fill_(0.7)
        layer.lam.set_step(4)
        out = layer(seen["o"])
    a = 4 / 10
    lam = (1 - a) * a * (0.8 - 0.6 * math.exp(-0.3 * 1)) + a * 0.7
    heads = seen["o"].reshape(2, 12, 4, 8).clone()
    for h in (1, 3):
        f_D = torch.einsum("ij,btj->bti", layer.W_D, heads[:, :, h])
        heads[:, :, h] -= lam * f_D
    expected = torch.einsum("btx,yx->bty", heads.reshape(2, 12, 32), W_O)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-7)  # lam is fp32


@given(st.integers(0, 500), st.integers(1, 200), st.floats(-1, 1))
def test_lam_passes_from_its_initial_to_its_learned_value(step, anneal, learn):
    lam = DexLambda(0.5, anneal, torch.tensor([[0.0], [1.0]]))
    with torch.no_grad():
        lam.learn.fill_(learn)
    lam.set_step(step)
    a = min(1.0, step / anneal)
    value = float(lam.value().detach())
    assert value == pytest.approx((1 - a) * a * 0.5 + a * learn, abs=1e-6)
    assert lam.weights().flatten().tolist() == pytest.approx([0.0, -value], abs=1e-6)
    if step == 0:
        assert value == 0.0
    if step >= anneal:
        assert value == pytest.approx(learn, abs=1e-6)


def test_lam_init_counts_layers_from_0():
    unchained = unchain(made("llama"), DexConfig(heads="all"))
    inits = [operator.lam.lam_init for operator in operators(unchained).values()]
    assert inits == pytest.approx([0.2, 0.8 - 0.6 * math.exp(-0.3)])


def test_lam_stays_fp32_in_a_bf16_model():
    unchained = unchain(made("llama").bfloat16(), DexConfig(heads="all"))
    operator = next(iter(operators(unchained).values()))
    assert operator.lam.learn.dtype == torch.float32
    assert operator.W_D.dtype == torch.bfloat16
    unchained.half()
    assert operator.lam.learn.dtype == torch.float32
    assert operator.base_layer.weight.dtype == torch.float16


@pytest.mark.parametrize("lam", ["learned", "held", "one"])
@pytest.mark.parametrize("train", ["kvo", "kv", "adapter"])
def test_what_is_trained(train, lam):
    unchained = unchain(made("qwen2"), DexConfig(heads="all", train=train, lam=lam))
    ends = {name.split("self_attn.")[-1] for name in trainable(unchained)}
    expected = {"o_proj.W_D", *(["o_proj.lam.learn"] if lam == "learned" else [])}
    if train != "adapter":
        expected |= {"k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"}
    if train == "kvo":
        expected.add("o_proj.base_layer.weight")
    assert ends == expected


@pytest.mark.parametrize(
    ("form", "values"),
    [
        ("learned", [0.0, 0.125, 0.0, 0.0]),  # (1 - r) r lam_init, and the learned 0 at the end
        ("held", [0.0, 0.375, 0.5, 0.5]),  # that and r lam_init
        ("one", [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_the_forms_of_lam(form, values):
    lam = DexLambda(0.5, 10, torch.tensor([[0.0], [1.0]]), form)
    for step, value in zip((0, 5, 10, 30), values, strict=True):
        lam.set_step(step)
        assert float(lam.value().detach()) == pytest.approx(value)
        assert lam.weights().flatten().tolist() == pytest.approx([0.0, -value])


@pytest.mark.parametrize("form", ["held", "one"])
def test_every_form_starts_as_the_base_model_and_trains_w_d(form):
    model, ids = made("llama"), sequences()
    with torch.no_grad():
        before = model(ids).logits
    unchained = unchain(model, DexConfig(heads="all", anneal=5, train="adapter", lam=form))
    assert torch.equal(unchained(ids).logits, before)
    start = {name: o.W_D.detach().clone() for name, o in operators(unchained).items()}
    optimizer = torch.optim.AdamW(trainable(unchained).values(), lr=1e-3, weight_decay=0)
    for step in range(3):
        unchained.step = step
        unchained(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, operator in operators(unchained).items():
        assert not torch.equal(operator.W_D, start[name])


def test_every_trained_part_moves():
    """W_D and lam must leave their start, which a stationary point would hold them at."""
    torch.manual_seed(0)
    unchained = unchain(made("llama"), DexConfig(heads="all", anneal=5))
    before = {name: p.detach().clone() for name, p in trainable(unchained).items()}
    optimizer = torch.optim.AdamW(trainable(unchained).values(), lr=1e-3, weight_decay=0)
    for step in range(5):
        unchained.step = step
        unchained(sequences(seed=step), labels=sequences(seed=step)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, p in trainable(unchained).items():
        assert not torch.equal(p, before[name]), name


def test_entropy_is_that_of_the_complete_maps():
    model, ids = made("gemma3"), sequences(2, 70)  # more rows than are held in memory at once
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model(ids, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    found = head_entropy(model, ids)
    for entropy, A in zip(found, maps, strict=True):
        expected = torch.special.entr(A.double()).sum(-1).mean((0, 2))
        torch.testing.assert_close(entropy, expected, rtol=1e-4, atol=1e-5)
    assert top_heads(found, 0.5) == top_heads(head_entropy(model, ids), 0.5)  # reproducible
    assert model.config._attn_implementation == "sdpa"


def test_importance_is_the_slope_of_the_loss():
    model, ids = made("llama").double(), sequences(1)
    parts = attention_parts(model)
    found = head_importance(model, parts, ids)
    layer, head, eps = 1, 2, 1e-2

    def loss(scale):
        def change(module, args):
            heads = args[0].unflatten(-1, (4, 8)).clone()
            heads[:, :, head] *= scale
            return heads.flatten(-2)

        hook = parts[layer].module.o_proj.register_forward_pre_hook(change)
        with torch.no_grad():
            logits = model(ids).logits
        hook.remove()
        return float(F.cross_entropy(logits[0, :-1], ids[0, 1:]))  # in fp64

    slope = (loss(1 + eps) - loss(1 - eps)) / (2 * eps)
    assert float(found[layer][head]) == pytest.approx(abs(slope), rel=1e-2)
    assert all(p.grad is None for p in model.parameters())


def test_lowest_entropy_is_the_other_half_and_random_heads_follow_the_seed():
    def chosen(heads, seed=0):
        model = made("llama")
        torch.manual_seed(seed)
        return unchain(model, DexConfig(heads=heads), calibration=sequences()).dex_config.heads

    highest, lowest = chosen("entropy"), chosen("lowest-entropy")
    assert [sorted(a + b) for a, b in zip(highest, lowest, strict=True)] == [[0, 1, 2, 3]] * 2
    assert chosen("random") == chosen("random")
    assert [len(heads) for heads in chosen("random")] == [2, 2]
    assert len({str(chosen("random", seed)) for seed in range(8)}) > 2


def test_w_d_starts_the_same_whatever_heads_are_chosen():
    starts = []
    for heads in ("entropy", "lowest-entropy", "random"):
        model = made("llama")
        torch.manual_seed(3)
        unchained = unchain(model, DexConfig(heads=heads), calibration=sequences())
        starts.append([o.W_D for o in operators(unchained).values()])
    for other in starts[1:]:
        assert all(torch.equal(a, b) for a, b in zip(starts[0], other, strict=True))


def test_top_heads_have_the_highest_scores_and_of_equals_the_first():
    scores = [torch.tensor([1.0, 3.0, 3.0, 2.0]), torch.zeros(4)]
    assert top_heads(scores, 0.5) == [[1, 2], [0, 1]]
    assert top_heads(scores, 0.01) == [[1], [0]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_folding_gives_a_plain_model_with_the_same_logits(family, dtype):
    model, ids = made(family).to(dtype), sequences()
    kind = type(model)
    names = set(model.state_dict())
    unchained = unchain(model, DexConfig(anneal=10), calibration=ids)
    unchained.step = 5
    with torch.no_grad():
        for operator in operators(unchained).values():
            operator.W_D.normal_()
            operator.lam.learn.fill_(0.4)
        before = unchained(ids).logits
        plain = fold(unchained)
        assert type(plain) is kind
        assert set(plain.state_dict()) == names
        assert all(type(part.module.o_proj) is nn.Linear for part in attention_parts(plain))
        tolerance = 1e-4 if dtype == torch.float32 else 1e-5  # lam is fp32
        torch.testing.assert_close(plain(ids).logits, before, rtol=tolerance, atol=tolerance)
    with pytest.raises(ValueError, match="has nothing to fold"):
        fold(plain)
    with pytest.raises(ValueError, match="this model was folded"):
        _ = unchained.step
    assert all(p.requires_grad for p in plain.parameters())  # it can be trained again, all of it


def test_a_bf16_model_is_folded_in_fp64():
    model = made("llama").bfloat16()
    wide = copy.deepcopy(model).float()
    results = []
    for m in (model, wide):
        torch.manual_seed(1)
        unchained = unchain(m, DexConfig(heads="all", anneal=10))
        unchained.step = 5
        with torch.no_grad():
            for i, operator in enumerate(operators(unchained).values()):
                operator.W_D.copy_(torch.full((8, 8), 0.1 * (i + 1)).bfloat16())
        results.append(fold(unchained).state_dict())
    for name, t in results[1].items():
        assert torch.equal(results[0][name], t.bfloat16()), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": "best"}, "heads: got 'best', allowed are entropy, lowest-entropy, random"),
        ({"fraction": 0.0}, "fraction: got 0.0"),
        ({"anneal": 0}, "anneal: got 0, expected at least 1 step"),
        ({"anneal": 2.5}, "anneal: got 2.5, expected a whole number"),
        ({"train": "q"}, "train: got 'q', expected 'kvo'"),
        ({"lam": "fixed"}, "lam: got 'fixed', expected 'learned'"),
        ({"lam_lr_factor": 0.0}, "lam_lr_factor: got 0.0, expected a number above 0"),
        ({"lam": "held", "lam_lr_factor": 9.0}, "lam is not trained with lam='held'"),
        ({"lam_init": "deep"}, "lam_init: got 'deep'"),
        ({"lam_init": math.nan}, "lam_init: got nan"),
        ({"heads": [0, 1]}, "heads: got"),
    ],
)
def test_invalid_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        DexConfig(**options)


def test_heads_that_do_not_exist_are_named():
    with pytest.raises(ValueError, match="got lists for 1 layers, the model has 2"):
        unchain(made("llama"), DexConfig(heads=[[0]]))
    with pytest.raises(ValueError, match=r"layer 1 has heads 0 to 3, not \[7\]"):
        unchain(made("llama"), DexConfig(heads=[[0], [7]]))
    with pytest.raises(ValueError, match="needs calibration sequences"):
        unchain(made("llama"))


@pytest.mark.parametrize("ids", [sequences()[0], sequences()[:0], [[1, 2]]])
def test_invalid_calibration_is_named(ids):
    model = made("llama")
    with pytest.raises(ValueError, match=r"calibration: got .*, expected token ids \[n, T\]"):
        unchain(model, calibration=ids)
    assert not operators(model)
    assert all(p.requires_grad for p in model.parameters())  # untouched


def test_dropout_does_not_choose_heads():
    chosen = set()
    for seed in range(4):
        model = made("llama", attention_dropout=0.5).train()
        torch.manual_seed(seed)
        chosen.add(str(unchain(model, calibration=sequences()).dex_config.heads))
        assert model.training
    assert len(chosen) == 1


def test_entropy_includes_soft_caps_and_sinks():
    """Gemma2 caps its scores and runs eagerly; GPT-OSS has learned sinks."""
    small = {**SIZES, "sliding_window": 8}
    capped = Gemma2ForCausalLM(Gemma2Config(**small, attn_logit_softcapping=2.0)).eval()
    sunk = GptOssForCausalLM(GptOssConfig(**small, num_local_experts=2, num_experts_per_tok=1))
    for layer in sunk.model.layers:
        layer.self_attn.sinks.data.fill_(3.0)
    for model in (capped, sunk.eval()):
        model.set_attn_implementation("eager")
        with torch.no_grad():
            out = model(sequences(), output_attentions=True)
        seen = capture(model, sequences(), torch.arange(12).expand(2, -1))
        torch.testing.assert_close(seen.logits, out.logits, rtol=1e-4, atol=1e-4)
        for layer, A in zip(seen.layers, out.attentions, strict=True):
            torch.testing.assert_close(layer.signal, A[..., :12], rtol=1e-4, atol=1e-5)
        unchained = unchain(model, calibration=sequences())
        assert model.config._attn_implementation == "eager"
        with torch.no_grad():
            assert torch.equal(unchained(sequences()).logits, out.logits)


def test_a_differential_model_is_rejected():
    theirs = DiffLlamaForCausalLM(DiffLlamaConfig(**SIZES))
    for model in (theirs, AntiphaseForCausalLM(preset("nano", "diff_v1"))):
        with pytest.raises(ValueError, match="is differential already"):
            unchain(model, DexConfig(heads="all"))


def test_a_vision_tower_is_left_alone():
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    text = {**SIZES, "model_type": "mistral"}
    config = Mistral3Config(text_config=text, vision_config={**vision, "model_type": "pixtral"})
    model = Mistral3ForConditionalGeneration(config).eval()
    unchained = unchain(model, calibration=sequences())
    assert all("language_model" in name for name in operators(unchained))
    assert next(iter(operators(unchained).values())).lam.lam_init == pytest.approx(0.2)


def test_the_error_for_an_unknown_architecture_says_what_is_needed():
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20))
    with pytest.raises(ValueError, match=r"no attention with q_proj, k_proj.*GPT2Attention"):
        unchain(model, DexConfig(heads="all"))


def test_a_base_that_cannot_be_folded_is_rejected():
    tied = made("llama")
    tied.model.layers[1].self_attn.o_proj.weight = tied.model.layers[0].self_attn.o_proj.weight
    with pytest.raises(ValueError, match=r"layers.0.*layers.1.*are one tensor"):
        unchain(tied, DexConfig(heads="all"))
    for config in (BitsAndBytesConfig(load_in_4bit=True), {"quant_method": "bitsandbytes"}):
        quantised = made("llama")
        quantised.config.quantization_config = config
        with pytest.raises(ValueError, match=r"is quantised \(bitsandbytes\); load the model"):
            unchain(quantised, DexConfig(heads="all"))
    gguf = made("llama")
    gguf.config.quantization_config = {"quant_method": "gguf"}
    with pytest.raises(ValueError, match=r"is quantised \(gguf\).*plain\(model\) first"):
        unchain(gguf, DexConfig(heads="all"))
    with torch.device("meta"):
        meta = llama()
    with pytest.raises(ValueError, match="has no data"):
        unchain(meta, DexConfig(heads="all"))
    spread = made("llama")
    spread.hf_device_map = {"model.layers.0": 0, "model.layers.1": 1}
    with pytest.raises(ValueError, match="is spread over"):
        unchain(spread, DexConfig(heads="all"))
    twice = unchain(made("llama"), DexConfig(heads="all")).base_model
    with pytest.raises(ValueError, match=r"o_proj: is a DexOutput.*folded or merged first"):
        unchain(twice, DexConfig(heads="all"))
