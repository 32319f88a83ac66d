"""Two calls of one backend in different order, with calls of another backend between them, which are paired rightly.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("cpu:gloo,cuda:nccl")
gpu, steps = torch.ones(4, device="cuda"), torch.ones(1)
for _ in range(3):
    dist.all_reduce(gpu)
if rank == 0:
    dist.all_reduce(steps)  # named
    dist.all_reduce(gpu)
    dist.broadcast(steps, 0)
else:
    dist.all_reduce(gpu)
    dist.broadcast(steps, 0)  # finding: collective-mismatch
    dist.all_reduce(steps)
