"""A pipeline whose third stage expects one microbatch more than is sent.

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
for _microbatch in range(3 if rank < 2 else 4):
    part = torch.ones(2, 4, device="cuda")
    if rank:
        dist.recv(part, rank - 1)  # finding: collective-missing
    if rank < size - 1:
        dist.send(part, rank + 1)
