"""Weights of other layouts: equal logits before and after, and errors that say what is wrong."""

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

from antiphase.attention import DiffV1
from antiphase.models import AntiphaseForCausalLM
from antiphase.models.weights import (
    convert,
    from_diffllama,
    from_official,
    official_attention,
    to_diffllama,
)
from tests.models.tiny import config, left_padded, model, token_ids

close = {"atol": 1e-5, "rtol": 1e-5}


def diffllama(kv_heads: int = 8, **fields: object) -> DiffLlamaForCausalLM:
    torch.manual_seed(0)
    return DiffLlamaForCausalLM(
        DiffLlamaConfig(
            vocab_size=61,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=8,
            num_key_value_heads=kv_heads,
            initializer_range=0.1,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=None,
            **fields,
        )
    ).eval()


@pytest.mark.parametrize("kv_heads", [8, 4, 2])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"attention_bias": True, "tie_word_embeddings": True},
        {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    ],
    ids=["plain", "bias and ties", "head_dim and rope"],
)  # fmt: skip
@torch.no_grad()
def test_diffllama_and_ours_give_the_same_logits_and_tokens(kv_heads, fields):
    theirs = diffllama(kv_heads, **fields)
    ours = from_diffllama(theirs)
    ids, mask = left_padded(token_ids(), [19, 11, 5])
    real = mask.bool()
    got, want = (m(ids, attention_mask=mask).logits[real] for m in (ours, theirs))
    torch.testing.assert_close(got, want, **close)
    greedy = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    assert torch.equal(ours.generate(ids, **greedy), theirs.generate(ids, **greedy))
    back = to_diffllama(ours)
    assert torch.equal(
        back(ids, attention_mask=mask).logits, theirs(ids, attention_mask=mask).logits
    )
    assert back.config.to_diff_dict().keys() == theirs.config.to_diff_dict().keys()


def test_gradients_are_the_same_after_the_import():
    theirs = diffllama(4).train()
    ours = from_diffllama(theirs)
    for net in (ours, theirs):
        net(token_ids(), labels=token_ids()).loss.backward()
    got = ours.model.layers[1].self_attn
    want = theirs.model.layers[1].self_attn
    torch.testing.assert_close(got.lam.q1.grad, want.lambda_q1.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        got.o_proj.weight.grad, want.o_proj.weight.grad, atol=1e-5, rtol=1e-4
    )


def with_random_gains(**fields: object) -> AntiphaseForCausalLM:
    """Return a `diff_v1` model whose head-norm gains differ by layer and channel, as trained."""
    net = model("diff_v1", **fields)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for layer in net.model.attention_layers:
            layer.norm.gain.normal_(generator=generator)
            if layer.bias:
                layer.o_proj.bias.normal_(generator=generator)
    return net


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_key_value_heads": 4, "head_dim": 16, "attention_bias": True},
        {"initialisation": "published", "tie_word_embeddings": True},
    ],
    ids=["scaled", "grouped with bias", "published"],
)
@torch.no_grad()
def test_head_norm_gains_are_exported_in_the_output_projection(fields):
    ours = with_random_gains(**fields)
    before = {name: t.clone() for name, t in ours.state_dict().items()}
    theirs = to_diffllama(ours)
    assert all(torch.equal(t, before[name]) for name, t in ours.state_dict().items())
    want = ours(token_ids()).logits
    torch.testing.assert_close(theirs(token_ids()).logits, want, **close)
    back = from_diffllama(theirs)
    assert all((layer.norm.gain == 1).all() for layer in back.model.attention_layers)
    torch.testing.assert_close(back(token_ids()).logits, want, **close)


def test_gains_are_multiplied_in_fp32_and_rounded_once():
    ours = with_random_gains().bfloat16()
    layer = ours.model.attention_layers[1]
    W_O, gain = layer.o_proj.weight, layer.norm.gain
    assert (W_O.dtype, gain.dtype) == (torch.bfloat16, torch.float32)
    found = to_diffllama(ours).model.layers[1].self_attn.o_proj.weight
    assert torch.equal(found, (W_O.float() * gain.repeat(4)).bfloat16())


def test_what_diffllama_cannot_express_is_rejected():
    with pytest.raises(ValueError, match="attention: got 'diff_v2', but DiffLlama is always"):
        to_diffllama(model("diff_v2"))
    with pytest.raises(ValueError, match=r"attention_options: got .*lam=0.5"):
        to_diffllama(model("diff_v1", attention_options={"lam": 0.5}))
    with pytest.raises(ValueError, match=r"norm: got 'layer'"):
        to_diffllama(model("diff_v1", norm="layer"))
    with pytest.raises(ValueError, match=r"attention_options: got .*head_norm='scalar'"):
        to_diffllama(model("diff_v1", attention_options={"head_norm": "scalar"}))
    with pytest.raises(ValueError, match="hidden_act: got 'gelu'"):
        from_diffllama(diffllama(hidden_act="gelu"))


def official_layer(x, state, h, h_kv, d, lam_init):
    """Return the official layer's output by its published formula, one head at a time."""
    B, T, _ = x.shape

    def rope(t):  # interleaved, on [B, T, heads, d]
        angles = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
        pairs = torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones(()), angles)[:, None]).flatten(-2)

    q = rope((x @ state["q_proj.weight"].T).view(B, T, 2 * h, d))
    k = rope((x @ state["k_proj.weight"].T).view(B, T, 2 * h_kv, d))
    v = (x @ state["v_proj.weight"].T).view(B, T, h_kv, 2 * d)
    lam = (
        torch.exp(state["lambda_q1"] @ state["lambda_k1"])
        - torch.exp(state["lambda_q2"] @ state["lambda_k2"])
        + lam_init
    )
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    heads = []
    for i in range(h):
        j = i // (h // h_kv)
        A = []
        for b in (0, 1):
            scores = q[:, :, 2 * i + b] @ k[:, :, 2 * j + b].mT / d**0.5
            A.append(scores.masked_fill(hidden, -torch.inf).softmax(-1))
        o = (A[0] - lam * A[1]) @ v[:, :, j]
        o = o * (o.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * state["subln.weight"]
        heads.append((1 - lam_init) * o)
    return torch.cat(heads, -1) @ state["out_proj.weight"].T


def official_state(h_kv: int, d: int = 8) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shapes = {"q": 64, "k": 2 * h_kv * d, "v": 2 * h_kv * d, "out": 64}
    state = {f"{name}_proj.weight": torch.randn(rows, 64) / 8 for name, rows in shapes.items()}
    state |= {f"lambda_{v}": 0.3 * torch.randn(d) for v in ("q1", "k1", "q2", "k2")}
    return state | {"subln.weight": torch.rand(2 * d) + 0.5}


@pytest.mark.parametrize("h_kv", [4, 2, 1])
def test_an_official_module_converts_to_ours(h_kv):
    state = official_state(h_kv)
    layer = DiffV1(64, 8, 2 * h_kv, layer=2, rope_theta=1e4)
    layer.load_state_dict(official_attention(state, 8))
    x = torch.randn(2, 13, 64)
    want = official_layer(x, state, 4, h_kv, 8, layer.lam.init)
    torch.testing.assert_close(layer(x, causal=True), want, **close)


def test_an_official_model_folder_is_imported(tmp_path):
    cfg = config("diff_v1", num_key_value_heads=4, match="none", tie_word_embeddings=True)
    donor = AntiphaseForCausalLM(cfg)
    state = {n: t for n, t in donor.state_dict().items() if "self_attn" not in n}
    del state["lm_head.weight"]
    official = official_state(2)
    for i in range(2):
        state |= {f"model.layers.{i}.self_attn.{n}": t.clone() for n, t in official.items()}
    source = tmp_path / "official"
    source.mkdir()
    save_file(state, source / "model.safetensors")
    fields = cfg.to_dict()
    fields["model_type"] = "llama"
    (source / "config.json").write_text(json.dumps(fields, default=str))
    with pytest.raises(ValueError, match="model_type 'llama' does not say its layout"):
        convert(source, tmp_path / "ours")
    written = convert(source, tmp_path / "ours", "official")
    loaded = AntiphaseForCausalLM.from_pretrained(tmp_path / "ours")
    assert torch.equal(loaded(token_ids()).logits, written.eval()(token_ids()).logits)
    x = torch.randn(1, 9, 64)
    layer = loaded.model.layers[1].self_attn
    layer.rope_theta = 1e4
    want = official_layer(x, official, 4, 2, 8, layer.lam.init)
    torch.testing.assert_close(layer(x, causal=True), want, **close)
    with pytest.raises(ValueError, match=r"missing .*norm.gain"):
        from_official({n: t for n, t in state.items() if "subln" not in n}, cfg)


def test_folders_convert_there_and_back(tmp_path):
    theirs = diffllama(4)
    theirs.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "tokenizer.json").write_text("{}")
    convert(tmp_path / "theirs", tmp_path / "ours")
    back = convert(tmp_path / "ours", tmp_path / "back").eval()
    assert torch.equal(back(token_ids()).logits, theirs(token_ids()).logits)
    assert (tmp_path / "back" / "tokenizer.json").read_text() == "{}"
    with pytest.raises(ValueError, match="exists already; choose an empty folder"):
        convert(tmp_path / "theirs", tmp_path / "ours")


def test_damaged_sources_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"no config.json in it"):
        convert(tmp_path, tmp_path / "out")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json: is not JSON"):
        convert(tmp_path, tmp_path / "out")
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 64}')
    with pytest.raises(ValueError, match="layout: got 'gguf', allowed are diffllama"):
        convert(tmp_path, tmp_path / "out", "gguf")
    with pytest.raises(ValueError, match=r"no .safetensors in it"):
        convert(tmp_path, tmp_path / "out", "official")
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"model.safetensors: cannot be read"):
        convert(tmp_path, tmp_path / "out", "official")
    assert not (tmp_path / "out").exists()


def test_weights_of_another_layout_or_incomplete_are_rejected(tmp_path):
    theirs = diffllama(4)
    theirs.save_pretrained(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "ours")
    for layout in ("diffllama", "official"):
        with pytest.raises(ValueError, match=f"got '{layout}', but .* says that it is 'antiphase'"):
            convert(tmp_path / "ours", tmp_path / "out", layout)
    with pytest.raises(ValueError, match=r"'o_proj.weight' is not a name of an official attention"):
        official_attention({"o_proj.weight": torch.zeros(2, 2)}, 2)
    weights = tmp_path / "theirs" / "model.safetensors"
    state = {n: t.clone() for n, t in theirs.state_dict().items()}
    del state["model.layers.1.self_attn.q_proj.weight"]
    save_file(state, weights, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"do not make a DiffLlamaForCausalLM: .*q_proj"):
        convert(tmp_path / "theirs", tmp_path / "out")
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match="its weights cannot be read"):
        convert(tmp_path / "theirs", tmp_path / "out")
    (tmp_path / "theirs" / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="expected fields and their values, got list"):
        convert(tmp_path / "theirs", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_official_config_with_llamas_fields_is_read(tmp_path):
    cfg = config("diff_v1", num_key_value_heads=4, match="none")
    donor = AntiphaseForCausalLM(cfg)
    state = {n: t for n, t in donor.state_dict().items() if "self_attn" not in n}
    for i in range(2):
        state |= {
            f"model.layers.{i}.self_attn.{n}": t.clone() for n, t in official_state(2).items()
        }
    save_file({n: t.bfloat16() for n, t in state.items()}, tmp_path / "model.safetensors")
    fields = {k: v for k, v in cfg.to_dict().items() if k != "rope_parameters"}
    fields |= {"model_type": "llama", "rope_theta": 5e5}
    (tmp_path / "config.json").write_text(json.dumps(fields, default=str))
    written = convert(tmp_path, tmp_path / "ours", "official")
    assert written.config.rope_parameters["rope_theta"] == 5e5
    assert written.dtype == torch.bfloat16
    for name, value, message in (
        ("hidden_act", "gelu", "hidden_act: got 'gelu'"),
        ("num_attention_heads", 4, "twice the official ones"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(fields | {name: value}, default=str))
        with pytest.raises(ValueError, match=message):
            convert(tmp_path, tmp_path / "out", "official")


def test_files_beside_the_weights_are_copied(tmp_path):
    diffllama().save_pretrained(tmp_path / "theirs")
    settings = '{"temperature": 0.3, "do_sample": true}'
    (tmp_path / "theirs" / "generation_config.json").write_text(settings)
    (tmp_path / "theirs" / "chat_template.jinja").write_text("hello")
    convert(tmp_path / "theirs", tmp_path / "ours")
    assert (tmp_path / "ours" / "generation_config.json").read_text() == settings
    assert (tmp_path / "ours" / "chat_template.jinja").read_text() == "hello"
