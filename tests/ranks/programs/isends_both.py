"""Both ranks post a large message before they receive, on one communicator.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine, theirs = torch.full((1 << 16,), float(rank), device="cuda"), torch.empty(1 << 16, device="cuda")
sending = dist.isend(mine, 1 - rank)  # finding: collective-deadlock
receiving = dist.irecv(theirs, 1 - rank)
sending.wait()
receiving.wait()
