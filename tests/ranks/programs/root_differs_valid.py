"""Rank 0 broadcasts.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
weights = torch.full((4,), float(rank), device="cuda")
dist.broadcast(weights, 0)
assert weights.tolist() == [0.0] * 4
