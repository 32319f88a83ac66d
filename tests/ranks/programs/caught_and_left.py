"""The error of calls that differ is caught, and a rank goes on alone: it does not wait for ever."""

import contextlib
import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(4, device="cuda")
with contextlib.suppress(dist.DistBackendError):
    if rank == 0:
        dist.all_reduce(value)  # named
    else:
        dist.broadcast(value, 0)  # finding: collective-mismatch
if rank == 1:
    dist.all_reduce(value)  # finding: collective-missing
