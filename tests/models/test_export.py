"""Programs that run without this package: `torch.export`, `torch.jit`, ONNX, AOTInductor.

While a program is recorded, `auto` is `sdpa`, so that it holds PyTorch's own operators only.
"""

import importlib.util

import pytest
import torch

from antiphase.attention import MECHANISMS
from antiphase.ops.fused_cpu import native
from tests.models.tiny import model, token_ids

NAMES = ["standard", "diff_v1", "diff_v2", "low_rank_noise", "fixed_noise"]
each = pytest.mark.parametrize("name", NAMES)
DYNAMIC = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}


def inputs(B: int, T: int, padded: bool = True) -> dict[str, torch.Tensor]:
    ids = token_ids(B, T)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    return {"input_ids": ids, "attention_mask": mask} if padded else {"input_ids": ids}


def net_of(name: str, **fields: object) -> torch.nn.Module:
    return model(name, use_cache=False, **fields)


def exported(net: torch.nn.Module, padded: bool = True) -> torch.export.ExportedProgram:
    given = inputs(2, 19, padded)
    shapes = dict.fromkeys(given, DYNAMIC)
    return torch.export.export(net, (), given, dynamic_shapes=shapes, strict=False)


def operators(program: torch.export.ExportedProgram) -> str:
    return " ".join(str(n.target) for n in program.graph.nodes if n.op == "call_function")


@each
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_batch_and_length_are_dynamic(name, padded):
    net = net_of(name, num_key_value_heads=4)
    program = exported(net, padded)
    assert "antiphase" not in operators(program)
    assert "scaled_dot_product_attention" in operators(program)
    for B, T in ((2, 19), (5, 70)):
        given = inputs(B, T, padded)
        got = program.module()(**given).logits
        torch.testing.assert_close(got, net(**given).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(MECHANISMS) - set(NAMES)))
@torch.no_grad()
def test_every_mechanism_is_exported(name):
    if name in ("gru", "lstm"):
        pytest.skip("PyTorch records its own recurrent networks with a fixed length")
    net = net_of(name)
    program = exported(net, padded=False)
    assert "antiphase" not in operators(program)
    for B, T in ((2, 19), (5, 70)):
        given = inputs(B, T, padded=False)
        # threshold's head norm enlarges rounding errors of rows that are nearly zero
        got = program.module()(**given).logits
        torch.testing.assert_close(got, net(**given).logits, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_requested_kernel_stays_in_the_program():
    net = net_of("diff_v1")
    net.set_attn_implementation("fused_cpu")
    program = exported(net)
    assert "antiphase.fused_attention" in operators(program)
    given = inputs(5, 33)
    torch.testing.assert_close(program.module()(**given).logits, net(**given).logits)


@each
@torch.no_grad()
def test_packed_sequences_are_exported(name):
    net = net_of(name)

    class Packed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, ids, positions):
            return self.net(ids, position_ids=positions).logits

    def packed(T):
        return token_ids(1, T), torch.arange(T)[None] % 7

    shapes = ({1: torch.export.Dim.DYNAMIC},) * 2
    program = torch.export.export(Packed(), packed(19), dynamic_shapes=shapes, strict=False)
    for T in (19, 70):
        ids, positions = packed(T)
        got = program.module()(ids, positions)
        alone = net(ids[:, 7:14]).logits  # the second document
        torch.testing.assert_close(got[:, 7:14], alone, atol=1e-5, rtol=1e-4)
        want = net(ids, position_ids=positions).logits
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


@each
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@torch.no_grad()
def test_a_trace_is_saved_and_loaded(name, tmp_path):
    net = net_of(name)

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, input_ids, attention_mask):
            return self.net(input_ids, attention_mask=attention_mask, return_dict=False)[0]

    given = inputs(2, 19)
    trace = torch.jit.trace(Logits(), tuple(given.values()), check_trace=False)
    torch.jit.save(trace, tmp_path / "trace.pt")
    loaded = torch.jit.load(tmp_path / "trace.pt")
    for B, T in ((2, 19), (4, 19)):
        given = inputs(B, T)
        want = net(**given).logits
        torch.testing.assert_close(loaded(*given.values()), want, atol=1e-5, rtol=1e-4)


ONNX = all(importlib.util.find_spec(n) for n in ("onnx", "onnxruntime", "onnxscript"))


@pytest.mark.skipif(
    not ONNX, reason="ONNX IS NOT INSTALLED: pip install onnx onnxruntime onnxscript"
)
@each
@torch.no_grad()
def test_onnxruntime_gives_the_same_logits(name, tmp_path):
    import onnxruntime

    net, given = net_of(name), inputs(2, 19)
    shapes = dict.fromkeys(given, DYNAMIC)
    program = torch.onnx.export(
        net, (), kwargs=given, dynamic_shapes=shapes, dynamo=True, verbose=False
    )
    program.save(tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    for B, T in ((2, 19), (5, 70)):
        given = inputs(B, T)
        got = session.run(None, {n: t.numpy() for n, t in given.items()})[0]
        want = net(**given).logits
        torch.testing.assert_close(torch.from_numpy(got), want, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["diff_v1", "diff_v2"])
@torch.no_grad()
def test_aotinductor_gives_the_same_logits(name, tmp_path):
    if native.compiler() is None:
        pytest.skip("NO C++ COMPILER: AOTInductor needs one")
    net = net_of(name)
    path = torch._inductor.aoti_compile_and_package(
        exported(net), package_path=str(tmp_path / "net.pt2")
    )
    compiled = torch._inductor.aoti_load_package(path)
    for B, T in ((2, 19), (5, 70)):
        given = inputs(B, T)
        got = compiled(**given)["logits"]
        torch.testing.assert_close(got, net(**given).logits, atol=1e-5, rtol=1e-4)


@each
@pytest.mark.parametrize("packed", [False, True])
def test_a_training_step_compiles_to_one_graph(name, packed):
    if name in ("standard", "diff_v1", "diff_v2") and not packed:
        pytest.skip("in test_compile.py")
    torch._dynamo.reset()
    ids, found = token_ids(1 if packed else 3, 40), []
    positions = torch.arange(40)[None] % 11 if packed else None
    net = net_of(name).train()
    for forward in (net, torch.compile(net, fullgraph=True, backend="aot_eager")):
        net.zero_grad()
        forward(ids, position_ids=positions, labels=ids).loss.backward()
        found.append({n: p.grad for n, p in net.named_parameters()})
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-3)
