"""Every rank reduces the loss, and rank 0 prints it.

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
dist.all_reduce(loss)
if rank == 0:
    print(loss.item())
dist.broadcast(weights, 0)
