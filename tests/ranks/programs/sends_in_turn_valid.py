"""One rank sends while the other receives.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine, theirs = torch.full((4,), float(rank), device="cuda"), torch.empty(4, device="cuda")
for sender in (0, 1):
    if rank == sender:
        dist.send(mine, 1 - rank)
    else:
        dist.recv(theirs, 1 - rank)
assert theirs.tolist() == [1.0 - rank] * 4
