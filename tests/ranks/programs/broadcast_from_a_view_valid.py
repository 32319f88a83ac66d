"""NCCL compares numbers of elements, not shapes.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
weights = torch.full((4, 4), float(rank), device="cuda")
dist.broadcast(weights.view(-1) if rank else weights, 0)
assert weights.sum().item() == 0
