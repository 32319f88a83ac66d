"""The workers of a DataLoader are forked while a collective is under way, which only the parent waits for.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("cpu:gloo,cuda:nccl")
gradient = torch.full((4,), rank + 1.0, device="cuda")
dist.all_reduce(gradient)
for _ in range(2):
    if rank == 0:
        work = dist.all_reduce(gradient, async_op=True)
    read = [int(batch.sum()) for batch in DataLoader(range(8), batch_size=2, num_workers=2)]
    if rank == 1:
        work = dist.all_reduce(gradient, async_op=True)
    work.wait()
    assert read == [1, 5, 9, 13]
assert gradient.tolist() == [12.0] * 4
dist.destroy_process_group()
