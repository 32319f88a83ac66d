"""A message that is sent as the bytes that it consists of.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
if rank == 0:
    dist.send(torch.arange(4.0, device="cuda").view(torch.uint8), 1)
else:
    received = torch.zeros(4, device="cuda")
    dist.recv(received, 0)
    assert received.tolist() == [0.0, 1.0, 2.0, 3.0]
