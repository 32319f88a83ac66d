"""A batched message that is received by a plain call: on another communicator.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.full((4,), float(rank), device="cuda")
dist.all_reduce(torch.ones(1, device="cuda"))
if rank == 0:
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, value, 1)]):  # finding: collective-deadlock
        work.wait()
else:
    dist.recv(value, 0)  # named
dist.barrier()
