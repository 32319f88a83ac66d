"""Rank 3 leaves the loop early; the others are in it.

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(2, device="cuda")
for step in range(6):
    if rank == 3 and step == 4:
        break
    dist.all_reduce(value)  # finding: collective-missing
