"""Both ranks post a small message before they receive: NCCL's buffers take it.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine, theirs = torch.full((64,), float(rank), device="cuda"), torch.empty(64, device="cuda")
sending, receiving = dist.isend(mine, 1 - rank), dist.irecv(theirs, 1 - rank)
sending.wait()
receiving.wait()
assert theirs.tolist() == [1.0 - rank] * 64
