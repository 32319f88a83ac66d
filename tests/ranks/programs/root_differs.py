"""Each rank takes itself for the one that broadcasts.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
weights = torch.full((4,), float(rank), device="cuda")
if rank:
    dist.broadcast(weights, rank)  # finding: collective-mismatch
else:
    dist.broadcast(weights, rank)  # named
