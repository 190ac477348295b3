"""Train a tiny model, sharded by FSDP2 under torchrun or not, and load what the shards saved.

    torchrun ... sharded.py ATTENTION FOLDER train|resume

`train` takes 8 steps and saves its shards after 4; `resume` takes the last 4 from there, in any
number of processes. Both write losses and what a run reads of a model to FOLDER/MODE-PROCESSES.pt.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from antiphase.models import AntiphaseForCausalLM, preset
from antiphase.training.callbacks import lambdas
from antiphase.training.checkpoints import gathered_weights
from antiphase.training.divergence import largest_gradient

attention, folder, mode = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
STEPS, SAVED = 8, 4
torch.set_num_threads(1)
torch.manual_seed(0)
model = AntiphaseForCausalLM(preset("nano", attention, hidden_size=64, vocab_size=32))
ids = torch.randint(0, 32, (8, 24), generator=torch.Generator().manual_seed(1))
world = int(os.environ.get("WORLD_SIZE", "1"))
if world > 1:
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    ids = ids.chunk(world)[dist.get_rank()]


def mean(loss: torch.Tensor) -> float:
    value = loss.detach().clone()
    if world > 1:
        dist.all_reduce(value)
    return float(value) / world


optimiser = torch.optim.AdamW(model.parameter_groups(0.1), lr=3e-3)
checkpoint = folder / "shards"
if mode == "resume":
    state = dict(zip(("model", "optimiser"), get_state_dict(model, optimiser), strict=True))
    dcp.load(state, checkpoint_id=checkpoint)
    set_state_dict(
        model, optimiser, model_state_dict=state["model"], optim_state_dict=state["optimiser"]
    )
losses = []
for step in range(SAVED if mode == "resume" else 0, STEPS):
    if step == SAVED and mode == "train" and world > 1:
        weights, moments = get_state_dict(model, optimiser)
        dcp.save({"model": weights, "optimiser": moments}, checkpoint_id=checkpoint)
    loss = model(ids, labels=ids, use_cache=False).loss
    losses.append(mean(loss))
    optimiser.zero_grad()
    loss.backward()
    largest = largest_gradient(model)
    optimiser.step()
found = {"losses": losses, "lambdas": lambdas(model), "largest": largest}
weights = gathered_weights(model)
found["weights"] = model.state_dict() if weights is None else weights
if world == 1 or dist.get_rank() == 0:
    torch.save(found, folder / f"{mode}-{world}.pt")
if world > 1:
    dist.barrier()
    dist.destroy_process_group()
    # FSDP's global state refers to the group, so gloo's threads are still alive. A thread that is
    # alive while Python finalises can abort the process: do not finalise.
    sys.stdout.flush()
    os._exit(0)
