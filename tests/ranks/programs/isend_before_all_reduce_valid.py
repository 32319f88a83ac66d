"""The same once the pair has its communicator: the message runs beside the collective.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
block, total = torch.full((1024,), float(rank), device="cuda"), torch.ones(4, device="cuda")
if rank == 0:
    dist.send(block, 1)
    work = dist.isend(block, 1)
    dist.all_reduce(total)
    work.wait()
else:
    dist.recv(block, 0)
    dist.all_reduce(total)
    dist.recv(block, 0)
assert block.sum().item() == 0
