"""Rank 5 of eight skips a step.

Runs with 8 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(4, device="cuda")
for step in range(3):
    if rank == 5 and step == 1:
        continue
    dist.all_reduce(value)  # finding: collective-missing
