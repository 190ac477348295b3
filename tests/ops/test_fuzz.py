"""A few hundred random calls; the campaign that `make fuzz` runs, and what it compares with."""

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.ops.formula import expected
from tests.ops.fuzz import Failure, Stream, campaign, check, relative_error, tolerance
from tests.ops.loop import attention_by_loops
from tests.ops.random_calls import Call, draw


@pytest.mark.parametrize(
    ("gradients", "first"),
    [(False, 0), (False, 50), (False, 100), (False, 150), (True, 0), (True, 50)],
)
def test_random_calls(cxx, gradients: bool, first: int):
    for seed in range(first, first + 50):
        call = draw(seed)
        failure = check(call, gradients=gradients)
        assert failure is None, f"seed {seed}: {failure}\n{call}"


def for_loops(call: Call) -> bool:
    """Tell whether `loop.py` can run a call: it has no scale, and exponentials may not overflow."""
    B, H, Tq, Tk = call.sizes
    options = call.options
    mask = options["mask"]
    moderate = mask is None or mask.dtype == torch.bool or float(mask.min()) > -100
    default = options["scale"] is None and options.get("scale2") is None
    return B * H * Tq * Tk < 400 and default and moderate and expected(call).scores < 300


def test_formula_equals_loops():
    """Two implementations that share the definitions alone."""
    compared = 0
    for call in filter(for_loops, map(draw, range(200))):
        t = {name: x.double() for name, x in call.tensors.items()}
        options = {k: v for k, v in call.options.items() if v is not None}
        for name in ("backend", "scale", "scale2"):
            options.pop(name, None)
        options["seed"] = int(options.pop("dropout_seed", 0))
        if "documents" in options:
            options["documents"] = options["documents"].expand(call.sizes[0], -1)
        pairs = [(t["q1"], t["k1"])]
        lam = None
        if call.two_maps:
            pairs.append((t["q2"], t["k2"]))
            lam = call.tensors["lam"] if call.lam is None else torch.tensor(call.lam)
            lam = lam.to(torch.promote_types(call.dtype, torch.float32)).double()
            lam = lam.expand(*call.sizes[:3], 1)
        out = attention_by_loops(pairs, t["v"], lam, sink=t.get("sink"), **options)
        torch.testing.assert_close(expected(call).values["out"], out, rtol=1e-6, atol=1e-6)
        compared += 1
    assert compared > 10


def plain(call: Call) -> Call:
    """Return a call of standard attention in fp32 with the inputs of another call."""
    tensors = {name: call.tensors[name].float().clone() for name in ("q1", "k1", "v")}
    options = {**dict.fromkeys(call.options), "causal": False, "keep_first": 0, "dropout": 0.0}
    changes = {"tensors": tensors, "options": options, "differentiated": frozenset(tensors)}
    return dataclasses.replace(call, lam=None, **changes)


def test_tolerance_is_what_standard_attention_needs():
    """PyTorch's own attention comes near the tolerance and stays within."""
    worst = 0.0
    for seed in range(150):
        call = plain(draw(seed))
        leaves = {name: t.detach().clone().requires_grad_() for name, t in call.tensors.items()}
        q, k, v = leaves.values()
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        dout = torch.randn(out.shape)
        gradients = torch.autograd.grad(out, [q, k, v], dout)
        want = expected(call, dout)
        allowed = tolerance(call, torch.float32, want.scores)
        for name, result in zip(("out", *leaves), (out.detach(), *gradients), strict=True):
            error = relative_error(result, want.values[name], want.magnitudes[name])
            worst = max(worst, float(error) / allowed)
    assert 0.1 < worst < 1


@pytest.mark.parametrize("name", ["value", "nan", "shape", "gradient"])
def test_wrong_results_are_found(name: str, monkeypatch):
    """An error of one element, of the size that rounding at 16 bits has, in an fp32 result."""
    call = next(c for c in map(draw, range(100)) if c.dtype == torch.float32 and c.sizes[2] > 20)
    run = Call.run

    def wrong(self, tensors):
        out = run(self, tensors)
        if name == "shape":
            return out[:, :, :-1]
        factor = torch.ones_like(out)
        factor[0, 0, -1, 0] = torch.nan if name == "nan" else 1.01
        if name == "gradient":  # with the right value
            return out * factor + (out * (1 - factor)).detach()
        return out * factor

    monkeypatch.setattr(Call, "run", wrong)
    failure = check(call, gradients=name == "gradient")
    assert isinstance(failure, Failure)
    assert failure.kind == ("non-finite" if name == "nan" else "mismatch")


def test_errors_are_found(monkeypatch):
    monkeypatch.setattr(Call, "run", lambda self, tensors: 1 / 0)
    failure = check(draw(0), gradients=False)
    assert failure == Failure("error", "ZeroDivisionError: division by zero")


DIES = """
import os
print('{"seed": 0}')
print('{"kinds": ["c++"], "failure": null}')
print('{"seed": 1}', flush=True)
os.abort()
"""


def test_campaign_counts_crashes_and_goes_on(tmp_path: Path, monkeypatch, capsys):
    """The process of a chunk dies in its second call; another one runs the rest, and dies, too."""
    script = tmp_path / "worker.py"
    script.write_text(DIES)
    monkeypatch.setattr(Stream, "command", lambda self, seed, count: f"python {script} {seed}")
    assert not campaign([Stream(False, 7, 4)], seconds=60)
    printed = capsys.readouterr().out
    assert "calls 4, with gradients 0, crashes 2, errors 0, non-finite 0, mismatches 0" in printed
    assert printed.count("crash: SIGABRT") == 2
    assert f"python {script} 8" in printed  # to repeat it
    assert "c++ 2" in printed


def test_campaign_that_cannot_start_raises(tmp_path: Path, monkeypatch):
    script = tmp_path / "worker.py"
    script.write_text("raise ImportError")
    monkeypatch.setattr(Stream, "command", lambda self, seed, count: f"python {script}")
    with pytest.raises(RuntimeError, match=r"worker.py .* ended with exit code 1"):
        campaign([Stream(False, 0, 4)], seconds=60)


def test_campaign_stops_in_time_and_says_how_to_continue(capsys):
    assert campaign([Stream(False, 5, 10), Stream(True, 5, 3)], seconds=-1)
    printed = capsys.readouterr().out
    assert "calls 0, with gradients 0" in printed
    assert "python -m tests.ops.fuzz --seed 5 --calls 0 --gradients 3" in printed


@pytest.mark.slow
def test_campaign(cxx, capsys):
    assert campaign([Stream(False, 1000, 300), Stream(True, 1000, 100)], seconds=600)
    assert "calls 300, with gradients 100, crashes 0" in capsys.readouterr().out
