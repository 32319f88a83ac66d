"""One rank asks a functional collective for the mean, the other for the sum.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
loss = torch.full((2,), float(rank), device="cuda")
loss = functional.all_reduce(loss, "avg" if rank == 0 else "sum", dist.group.WORLD)  # finding: collective-mismatch
print(loss.tolist())
