"""Rank 1 raises before a collective.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(2, device="cuda")
for step in range(3):
    if rank == 1 and step == 2:
        raise ValueError("the loss is not finite")  # finding: rank-ended
    dist.all_reduce(value)  # named
