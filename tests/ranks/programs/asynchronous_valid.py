"""Collectives that are waited for later, in another order.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
values = [torch.ones(4, device="cuda") for _ in range(3)]
works = [dist.all_reduce(value, async_op=True) for value in values]
for work in reversed(works):
    work.wait()
assert all(value.tolist() == [2.0] * 4 for value in values)
