"""Every mechanism split over the processes of torchrun, against the complete model.

Writes a JSON file: by mechanism, the largest differences of logits and gradients, relative to the
largest value, and the fraction of its attention parameters that one process holds.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from antiphase.attention import MECHANISMS
from antiphase.models import AntiphaseForCausalLM
from tests.models.tiny import model as tiny

torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
ids = torch.randint(0, 61, (2, 12), generator=torch.Generator().manual_seed(1))


def complete(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def run(model: AntiphaseForCausalLM) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return logits without gradients, and all gradients of the loss."""
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits
    model.zero_grad()
    model(ids, labels=ids, use_cache=False).loss.backward()
    grads = {n: complete(p.grad) for n, p in model.named_parameters() if p.grad is not None}
    return logits, grads


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max() / one.abs().max().clamp(min=1e-6))


found = {}
for name in MECHANISMS:
    torch.manual_seed(0)
    model = tiny(name, num_attention_heads=8, num_key_value_heads=8)
    logits, grads = run(model)
    apply_tensor_parallelism(model, mesh)
    split_logits, split_grads = run(model)
    attention = [p for layer in model.model.attention_layers for p in layer.parameters()]
    local = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in attention)
    found[name] = {
        "logits": difference(logits, split_logits),
        "gradients": max((difference(grads[n], split_grads[n]), n) for n in grads | split_grads),
        "held": local / sum(p.numel() for p in attention),
    }
if dist.get_rank() == 0:
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1))
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # gloo's threads may be alive: do not finalise
