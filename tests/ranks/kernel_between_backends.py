"""Rank 0 uses its GPU between a call of NCCL and one of gloo, which rank 1 makes in the other order: hardware goes on.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("cpu:gloo,cuda:nccl")
gpu, cpu = torch.ones(4, device="cuda"), torch.ones(4)
dist.all_reduce(gpu)
if rank == 0:
    dist.all_reduce(gpu)
    gpu += 1
    dist.all_reduce(cpu)
else:
    dist.all_reduce(cpu)
    dist.all_reduce(gpu)
