"""Metrics are gathered as objects on rank 0 only (torchrec#4149).

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(4, device="cuda")
found = [None] * size
if rank == 0:
    dist.all_gather_object(found, {"loss": 1.0})  # named
dist.all_reduce(value)  # finding: collective-mismatch
