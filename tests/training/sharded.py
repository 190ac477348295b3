"""Train a tiny model, sharded by FSDP2 under torchrun or not; then load what the shards saved."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from antiphase.models import AntiphaseForCausalLM, preset

attention, folder = sys.argv[1], Path(sys.argv[2])
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


def loss_of() -> torch.Tensor:
    return model(ids, labels=ids, use_cache=False).loss


def mean(loss: torch.Tensor) -> float:
    value = loss.detach().clone()
    if world > 1:
        dist.all_reduce(value)
    return float(value) / world


optimiser = torch.optim.AdamW(model.parameter_groups(0.1), lr=3e-3)
losses = []
for _ in range(8):
    loss = loss_of()
    losses.append(mean(loss))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
with torch.no_grad():
    last = mean(loss_of())
checkpoint = folder / "shards"
if world > 1:
    dcp.save(get_model_state_dict(model), checkpoint_id=checkpoint)
    if dist.get_rank() == 0:
        torch.save({"losses": losses, "last": last}, folder / "two.pt")
    dist.destroy_process_group()
    # FSDP's global state refers to the group, so gloo's threads are still alive. A thread that is
    # alive while Python finalises can abort the process: do not finalise.
    sys.stdout.flush()
    os._exit(0)
else:
    state = get_model_state_dict(model)
    dcp.load(state, checkpoint_id=checkpoint)
    set_model_state_dict(model, state)
    with torch.no_grad():
        loaded = mean(loss_of())
    torch.save({"losses": losses, "loaded": loaded}, folder / "one.pt")
