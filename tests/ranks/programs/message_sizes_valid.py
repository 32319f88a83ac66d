"""Messages of many sizes, each received as it was sent; shapes may differ.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
for number in (0, 1, 3, 5000, 1 << 16):
    if rank == 0:
        dist.send(torch.full((number, 2), float(number), device="cuda"), 1)
    else:
        received = torch.zeros(2 * number, device="cuda")
        dist.recv(received, 0)
        assert received.tolist() == [float(number)] * 2 * number
