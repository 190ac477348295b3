"""`torch.compile(fullgraph=True)` of a training step and of decoding with a static cache."""

import pytest
import torch
from transformers.cache_utils import StaticCache

from antiphase.attention import MECHANISMS
from antiphase.models.compiled_decoding import compiled_generation
from tests.models.tiny import model, token_ids

SLOW = pytest.mark.slow
COMPILERS = ["aot_eager", pytest.param("inductor", marks=SLOW)]
OTHERS = set(MECHANISMS) - {"standard", "diff_v1", "diff_v2"}
both = pytest.mark.parametrize("compiler", COMPILERS)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@both
@pytest.mark.parametrize(
    ("name", "padded"),
    [  # both kinds of lam and of mask stay in the fast set
        ("diff_v1", False),
        ("diff_v2", True),
        pytest.param("diff_v1", True, marks=SLOW),
        pytest.param("diff_v2", False, marks=SLOW),
        pytest.param("standard", False, marks=SLOW),
        pytest.param("standard", True, marks=SLOW),
        *(pytest.param(name, False, marks=SLOW) for name in sorted(OTHERS)),
    ],
)
def test_a_training_step_is_one_graph(name, compiler, padded):
    if name in ("gru", "lstm"):
        pytest.skip("Dynamo does not trace PyTorch's recurrent networks")
    ids = token_ids()
    mask = None
    if padded:
        mask = torch.ones_like(ids)
        mask[0, -5:] = 0
    net, found = model(name).train(), []
    for forward in (net, torch.compile(net, fullgraph=True, backend=compiler)):
        net.zero_grad()
        forward(ids, attention_mask=mask, labels=ids, use_cache=False).loss.backward()
        found.append([p.grad for p in net.parameters()])
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-3)


@both
@pytest.mark.parametrize("name", ["diff_v1", pytest.param("diff_v2", marks=SLOW)])
def test_activation_checkpointing_is_part_of_the_graph(name, compiler):
    ids, found = token_ids(), []
    net = model(name).train()
    for checkpointing in (False, True):
        forward = net
        if checkpointing:
            net.gradient_checkpointing_enable({"use_reentrant": False})
            forward = torch.compile(net, fullgraph=True, backend=compiler)
        net.zero_grad()
        forward(ids, labels=ids, use_cache=False).loss.backward()
        found.append([p.grad for p in net.parameters()])
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-3)


@both
@pytest.mark.parametrize(
    "name", ["diff_v1", *(pytest.param(n, marks=SLOW) for n in ("standard", "diff_v2"))]
)
@torch.no_grad()
def test_decoding_with_a_static_cache_is_one_graph(name, compiler):
    net, ids = model(name), token_ids(2, 12)
    want = net(ids, use_cache=False).logits
    cache = StaticCache(config=net.config, max_cache_len=16)
    net(ids[:, :6], past_key_values=cache)
    graphs = torch._dynamo.testing.CompileCounterWithBackend(compiler)
    step = torch.compile(net.forward, fullgraph=True, backend=graphs)
    for t in range(6, 12):
        got = step(ids[:, t : t + 1], past_key_values=cache).logits[:, 0]
        torch.testing.assert_close(got, want[:, t], atol=2e-5, rtol=1e-4)
    assert graphs.frame_count == 1


@both
@pytest.mark.parametrize(
    "name", ["diff_v2", *(pytest.param(n, marks=SLOW) for n in ("standard", "diff_v1"))]
)
@torch.no_grad()
def test_compiled_generation_gives_the_same_tokens(name, compiler):
    net, ids = model(name), token_ids(2, 9)
    greedy = {"do_sample": False, "max_new_tokens": 6}
    want = net.generate(ids, **greedy)
    arguments = compiled_generation()
    arguments["compile_config"].backend = compiler
    assert torch.equal(net.generate(ids, **greedy, **arguments), want)


@torch._dynamo.config.patch(recompile_limit=1)
@torch.no_grad()
def test_more_cache_lengths_than_pytorch_compiles():
    """Beyond the limit, decoding is eager; it does not fail."""
    net, ids = model("diff_v2"), token_ids(1, 9)
    for new_tokens in (3, 5, 7):
        arguments = compiled_generation()
        arguments["compile_config"].backend = "aot_eager"
        greedy = {"do_sample": False, "max_new_tokens": new_tokens}
        want = net.generate(ids, **greedy)
        assert torch.equal(net.generate(ids, **greedy, **arguments), want)
