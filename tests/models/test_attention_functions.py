"""Attention functions of transformers in place of the ops: equal outputs, servers, batching."""

import ast
import inspect
import textwrap

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, GenerationConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from antiphase.attention.base import Attention
from antiphase.models import PRESETS, preset
from antiphase.models.serving import serve_command, served_heads, served_mechanisms
from tests.attention.cases import NAMES
from tests.models.tiny import left_padded, model, token_ids

SERVED = ["standard", "diff_v1", "diff_v2"]
served = pytest.mark.parametrize("name", SERVED)
close = {"atol": 1e-5, "rtol": 0}


@pytest.fixture
def counted():
    """Register an attention function that counts its calls."""
    calls = []

    def function(module, query, key, value, attention_mask, **kwargs):
        calls.append((module.layer_idx, query.shape[1], key.shape[1], kwargs["scaling"]))
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)

    AttentionInterface.register("counted", function)
    AttentionMaskInterface.register("counted", sdpa_mask)
    yield calls
    AttentionInterface._global_mapping.pop("counted")
    AttentionMaskInterface._global_mapping.pop("counted")


def packed(ids):
    T = ids.shape[1]
    return torch.cat([torch.arange(7), torch.arange(T - 7)])[None]


@served
@pytest.mark.parametrize("kv_heads", [8, 4, 2])
@pytest.mark.parametrize("function", ["sdpa", "counted", "flex_attention"])
@torch.no_grad()
def test_a_function_gives_what_the_op_gives(name, kv_heads, function, counted):
    net = model(name, num_key_value_heads=kv_heads)
    ids = token_ids()
    padded, mask = left_padded(ids, [19, 11, 5])
    calls = [
        (lambda: net(ids).logits),
        (lambda: net(padded, attention_mask=mask).logits[mask.bool()]),
        (lambda: net(ids[:1], position_ids=packed(ids)).logits),
    ]
    want = [call() for call in calls]
    net.set_attn_implementation(function)
    assert net.config._attn_implementation == function
    with torch.compiler.set_stance("force_eager"):  # else flex attention compiles
        for call, expected in zip(calls, want, strict=True):
            torch.testing.assert_close(call(), expected, **close)


@served
@torch.no_grad()
def test_a_sliding_window_and_a_cache_with_a_function(name):
    net = model(name, sliding_window=5, layer_types=["sliding_attention", "full_attention"])
    ids, mask = left_padded(token_ids(), [19, 11, 5])
    greedy = {"do_sample": False, "max_new_tokens": 8, "attention_mask": mask}
    want = net.generate(ids, **greedy)
    net.set_attn_implementation("sdpa")
    assert torch.equal(net.generate(ids, **greedy), want)
    static = net.generate(ids, cache_implementation="static", **greedy)
    assert torch.equal(static, want)


@served
def test_gradients_through_a_function(name):
    net, ids, found = model(name), token_ids(), []
    for function in ("reference", "sdpa"):
        net.set_attn_implementation(function)
        net.zero_grad()
        net(ids, labels=ids, use_cache=False).loss.backward()
        found.append([p.grad.clone() for p in net.parameters()])
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-3)


@served
@torch.no_grad()
def test_one_call_per_layer_with_the_heads_that_a_server_counts(name, counted):
    net = model(name, num_key_value_heads=4, attn_implementation="counted")
    net(token_ids())
    q_heads, kv_heads, width = served_heads(net.config)
    assert counted == [(layer, q_heads, kv_heads, width**-0.5) for layer in (0, 1)]
    assert net.model.attention_layers[0].num_key_value_groups == q_heads // kv_heads


def test_heads_as_a_server_counts_them():
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 64}
    counts = {name: served_heads(preset("nano", name, **sizes)) for name in SERVED}
    assert counts == {"standard": (8, 4, 8), "diff_v1": (16, 8, 8), "diff_v2": (16, 4, 8)}
    assert served_heads(
        preset("nano", "standard", **sizes, attention_options={"half_dim": True})
    ) == (16, 8, 4)


def test_the_source_has_one_call_of_an_attention_function():
    # A server reads it from the class's forward: a name assigned from ALL_ATTENTION_FUNCTIONS.
    tree = ast.parse(textwrap.dedent(inspect.getsource(Attention.forward)))
    lookups = [
        node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and "ALL_ATTENTION_FUNCTIONS" in ast.unparse(node.value)
    ]
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in lookups
    ]
    assert (len(lookups), len(calls)) == (1, 1)
    scaling = [k.value for k in calls[0].keywords if k.arg == "scaling"]
    assert [ast.unparse(value) for value in scaling] == ["self.scaling"]


@pytest.mark.parametrize("name", [n for n in NAMES if n not in SERVED])
def test_the_other_mechanisms_say_that_no_function_computes_them(name):
    assert name not in served_mechanisms()
    net = model(name)
    with pytest.raises(ValueError, match="not computed by one call of standard attention"):
        net.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match="allowed are standard, diff_v1, diff_v2"):
        served_heads(net.config)
    net.set_attn_implementation("sdpa")  # the op of that name
    net(token_ids(2))


@torch.no_grad()
def test_maps_soft_caps_and_dropout_come_from_the_ops(counted):
    net = model("diff_v2", attn_implementation="counted")
    want = net(token_ids(), output_attentions=True)
    assert not counted
    assert want.attentions[0].shape == (3, 8, 19, 19)
    capped = model("diff_v2", attn_logit_softcapping=2.0)
    want = capped(token_ids()).logits
    capped.set_attn_implementation("sdpa")
    torch.testing.assert_close(capped(token_ids()).logits, want, **close)


def test_an_output_of_other_heads_is_rejected(counted):
    AttentionInterface.register("halved", lambda m, q, k, v, mask, **kw: (q[:, ::2], None))
    try:
        net = model("diff_v2", attn_implementation="halved")
        with pytest.raises(ValueError, match="has to count 16 query heads of width 8"):
            net(token_ids())
    finally:
        AttentionInterface._global_mapping.pop("halved")


@pytest.mark.parametrize("name", ["standard", "diff_v2"])
@torch.no_grad()
def test_continuous_batching_gives_the_tokens_of_generate(name):
    from transformers import ContinuousBatchingConfig

    net = model(name, num_key_value_heads=4)
    prompts = [token_ids(1, n, seed=n)[0].tolist() for n in (5, 11, 17, 3)]
    out = net.generate_batch(
        prompts,
        generation_config=GenerationConfig(
            max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=16, num_blocks=64, max_batch_tokens=64
        ),
    )
    assert net.config._attn_implementation == "auto"  # as before the call
    for i, prompt in enumerate(prompts):
        want = net.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)
        assert out[f"req_{i}"].generated_tokens == want[0, len(prompt) :].tolist()


def test_continuous_batching_rejects_heads_that_its_cache_does_not_have():
    with pytest.raises(ValueError, match="generate_batch: diff_v1 has 16 key/value heads"):
        model("diff_v1").generate_batch([[1, 2, 3]])


@served
@pytest.mark.parametrize("size", list(PRESETS))
def test_the_plan_of_tensor_parallelism_names_every_projection(name, size):
    config = preset(size, name)
    with torch.device("meta"):
        layer = config.attention_layer()
    names = {f"layers.*.self_attn.{n}" for n, _ in layer.named_children() if n.endswith("_proj")}
    plan = config.base_model_tp_plan
    assert names == {key for key in plan if "self_attn" in key and key.endswith("_proj")}
    assert config.feed_forward_width % 4 == 0
    assert abs(_layer(config) / _layer(preset(size, "standard")) - 1) < 0.01
    assert "base_model_tp_plan" not in config.to_dict()


def _layer(config):
    with torch.device("meta"):
        attention = sum(p.numel() for p in config.attention_layer().parameters())
    return attention + 3 * config.hidden_size * config.feed_forward_width


def test_the_command_that_serves_a_model(tmp_path):
    folder = str(tmp_path)
    model("standard", max_position_embeddings=77).save_pretrained(folder)
    command = serve_command(folder, port=9, dtype="float32", tensor_parallel=2)
    assert command == (
        f"vllm serve {folder} --port 9 --dtype float32 --skip-tokenizer-init "
        "--max-model-len 77 --tensor-parallel-size 2"
    ).split(" ")
    with pytest.raises(ValueError, match="--tensor-parallel: got 3, which does not divide"):
        serve_command(folder, tensor_parallel=3)
    model("low_rank_noise").save_pretrained(folder)
    with pytest.raises(ValueError, match="low_rank_noise is not computed by one call"):
        serve_command(folder)
