"""Every rank raises and catches, having agreed to.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
bad = torch.tensor(float(rank == 1), device="cuda")
dist.all_reduce(bad)
try:
    if bad.item():
        raise ValueError("the loss is not finite on some rank")
except ValueError:
    dist.barrier()
