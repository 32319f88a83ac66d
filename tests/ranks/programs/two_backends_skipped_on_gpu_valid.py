"""Every rank makes the collective on its GPU, some before and some after that on the CPU.

Runs with 3 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("cpu:gloo,cuda:nccl")
loss, steps = torch.ones(4, device="cuda"), torch.ones(1)
dist.all_reduce(loss)
if rank != 1:
    dist.all_reduce(loss)
dist.all_reduce(steps)
if rank == 1:
    dist.all_reduce(loss)
assert loss.tolist() == [9.0] * 4
assert steps.tolist() == [3.0]
