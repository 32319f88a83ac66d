"""Rank 1 waits for a message that nobody sends.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(4, device="cuda")
if rank == 1:
    dist.recv(value, 0)  # named
dist.all_reduce(value)  # finding: collective-deadlock
