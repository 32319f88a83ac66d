"""One rank leaves out a collective on its GPU; the calls on the CPU are complete and hide nothing.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("cpu:gloo,cuda:nccl")
loss, steps = torch.ones(4, device="cuda"), torch.ones(1)
dist.all_reduce(loss)
if rank == 0:
    dist.all_reduce(loss)  # finding: collective-missing
dist.all_reduce(steps)
print(loss.tolist())
