"""A ring in which every other rank receives first, so that two always make their communicator.

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine, theirs = torch.full((1,), float(rank), device="cuda"), torch.empty(1, device="cuda")
left, right = (rank - 1) % size, (rank + 1) % size
if rank % 2:
    receiving, sending = dist.irecv(theirs, left), dist.isend(mine, right)
else:
    sending, receiving = dist.isend(mine, right), dist.irecv(theirs, left)
sending.wait()
receiving.wait()
assert theirs.item() == left
