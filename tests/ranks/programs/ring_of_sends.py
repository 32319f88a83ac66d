"""A ring in which every rank sends before it receives.

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine, theirs = torch.ones(4, device="cuda"), torch.empty(4, device="cuda")
dist.send(mine, (rank + 1) % size)  # finding: collective-deadlock
dist.recv(theirs, (rank - 1) % size)
