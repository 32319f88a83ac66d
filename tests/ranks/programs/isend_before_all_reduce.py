"""A message that is received after a collective, which comes after its isend (pytorch#108378).

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
    work = dist.isend(block, 1)  # finding: collective-deadlock
    dist.all_reduce(total)
    work.wait()
else:
    dist.all_reduce(total)  # named
    dist.recv(block, 0)
