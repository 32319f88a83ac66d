"""As many bytes are received as are sent, as another type.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
if rank == 0:
    dist.send(torch.ones(4, device="cuda"), 1)  # named
else:
    received = torch.zeros(8, device="cuda", dtype=torch.bfloat16)
    dist.recv(received, 0)  # finding: collective-mismatch
dist.barrier()
