"""A ring in which every rank waits for its right neighbour to make their communicator.

Runs with 3 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine, theirs = torch.full((1,), float(rank), device="cuda"), torch.empty(1, device="cuda")
sending = dist.isend(mine, (rank + 1) % size)  # finding: collective-deadlock
dist.recv(theirs, (rank - 1) % size)
sending.wait()
