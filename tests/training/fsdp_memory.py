"""Measure the memory of a training step of `mini` under FSDP2, against what `plan` says.

    torchrun --nproc-per-node 2 -m tests.training.fsdp_memory [FILE]

State: bytes of the tensors that stay between steps in one process (its part of the weights,
gradients and moments), read from the tensors. Activations: what the CPU allocator of PyTorch has
handed out and not taken back when the forward pass ends, by the memory events of PyTorch's
profiler, minus the gathered weights outside of the blocks, which FSDP2 keeps until backward. The
peak is the largest sum of these events in a complete step, above the state at its beginning.
Needs no accelerator; weights and activations are fp32.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

from antiphase.models import AntiphaseForCausalLM
from antiphase.training.plan import Hardware, plan, planned_config
from antiphase.training.recipe import Recipe

LENGTH, SEQUENCES = 256, 4
OPTIONS = {"length": LENGTH, "tokenizer": "bpe:4096"}


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def size(tensors: list[torch.Tensor]) -> int:
    return sum(local(t).nbytes for t in tensors)


def allocated(function: Callable[[], object]) -> tuple[int, int]:
    """Return what is allocated at the end and at the peak of a call, above its beginning."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = function()
    events = profiler.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    now = peak = 0
    for _, change in sorted(changes, key=lambda entry: entry[0]):
        now += change
        peak = max(peak, now)
    del kept
    return now, peak


def measure(checkpointing: bool) -> dict[str, dict[str, int]]:
    world = dist.get_world_size()
    recipe = Recipe(
        size="mini",
        attention="diff_v1",
        task="language",
        task_options=OPTIONS,
        batch_size=SEQUENCES * world,
        checkpointing=checkpointing,
    )
    expected = plan(recipe, Hardware(devices=world)).memory
    torch.manual_seed(0)
    model = AntiphaseForCausalLM(planned_config(recipe)[0]).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    blocks = sum(p.numel() for block in model.model.layers for p in block.parameters())
    rest = sum(p.numel() for p in model.parameters()) - blocks
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimiser = torch.optim.AdamW(model.parameter_groups(0.1), lr=1e-3)
    ids = torch.randint(0, 4096, (SEQUENCES, LENGTH))

    def forward() -> torch.Tensor:
        loss: torch.Tensor = model(ids, labels=ids, use_cache=False).loss
        return loss

    def step() -> None:
        forward().backward()
        optimiser.step()
        optimiser.zero_grad()

    forward().backward()
    optimiser.step()
    parameters = list(model.parameters())
    moments = [t for s in optimiser.state.values() for n, t in s.items() if n != "step"]
    found = {
        "weights": size(parameters),
        "gradients": size([p.grad for p in parameters if p.grad is not None]),
        "optimiser": size(moments),
    }
    optimiser.zero_grad()
    live, _ = allocated(forward)
    model.zero_grad()
    step()
    _, peak = allocated(step)
    found["activations"] = live - 4 * rest
    found["above the state"] = peak
    above = expected.gradients + expected.gathered + expected.activations + expected.temporary
    planned = {name: getattr(expected, name) for name in list(found)[:3]}
    planned |= {"activations": expected.activations, "above the state": above}
    return {name: {"measured": found[name], "planned": planned[name]} for name in found}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {"plain": measure(False), "checkpointing": measure(True)}
    if dist.get_rank() == 0:
        for name, rows in results.items():
            print(
                f"{name}\n| | measured, MB | planned, MB | planned / measured |\n|---|---|---|---|"
            )
            for row, found in rows.items():
                m, p = found["measured"], found["planned"]
                print(f"| {row} | {m / 1e6:.2f} | {p / 1e6:.2f} | {p / m:.3f} |")
        if len(sys.argv) > 1:
            Path(sys.argv[1]).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # FSDP keeps gloo's threads alive: do not finalise


if __name__ == "__main__":
    main()
