"""NCCL ignores tags: messages are matched in the order of the calls.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
first, second = torch.tensor([10.0], device="cuda"), torch.tensor([20.0], device="cuda")
if rank == 0:
    dist.send(first, 1, tag=1)
    dist.send(second, 1, tag=2)
else:
    received = [torch.zeros_like(first) for _ in range(2)]
    dist.recv(received[0], 0, tag=2)
    dist.recv(received[1], 0, tag=1)
    assert [tensor.item() for tensor in received] == [10.0, 20.0]
