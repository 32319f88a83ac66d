"""Rank 0 alone logs a reduced loss (Lightning#19106: a metric is reduced on one rank).

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
loss = torch.ones(1, device="cuda")
weights = torch.ones(8, device="cuda")
if rank == 0:
    dist.all_reduce(loss)  # named
dist.broadcast(weights, 0)  # finding: collective-mismatch
