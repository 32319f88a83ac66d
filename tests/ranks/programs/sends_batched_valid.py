"""A ring in which all send and receive at once.

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine, theirs = torch.full((4,), float(rank), device="cuda"), torch.empty(4, device="cuda")
operations = [dist.P2POp(dist.isend, mine, (rank + 1) % size), dist.P2POp(dist.irecv, theirs, (rank - 1) % size)]
for work in dist.batch_isend_irecv(operations):
    work.wait()
assert theirs.tolist() == [float((rank - 1) % size)] * 4
