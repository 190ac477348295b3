"""One of two processes: a thread of gloo needs the GIL while the process group is freed.

The thread frees a tensor whose finalizer takes a second, and holds the group's mutex meanwhile. As
in a run, only a DDP wrapper in a reference cycle holds the group when it is destroyed.
"""

import os
import sys
import time
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from antiphase.training.run import process_group

with process_group():
    dist.init_process_group("gloo")
    wrapper = DistributedDataParallel(torch.nn.Linear(1, 1))
    wrapper.itself = wrapper
    del wrapper
    if dist.get_rank() == 0:
        tensor = torch.ones(1)
        finalizer = weakref.finalize(tensor, time.sleep, 1.0)
        work = dist.all_reduce(tensor, async_op=True)
        del tensor, work  # the thread that reduces it has the last reference
        while finalizer.alive:
            time.sleep(0.01)
    else:
        time.sleep(0.5)
        dist.all_reduce(torch.ones(1))
        time.sleep(2)  # the other end stays open
Path(sys.argv[1], os.environ["RANK"]).touch()
