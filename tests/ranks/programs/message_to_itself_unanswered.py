"""A rank sends to itself in a batch and receives nothing."""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(4, device="cuda")
dist.all_reduce(value)
if rank == 1:
    (work,) = dist.batch_isend_irecv([dist.P2POp(dist.isend, value, 1)])  # finding: collective-deadlock
    work.wait()
