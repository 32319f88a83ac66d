"""The same in a group of its own.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
block, total = torch.full((1 << 16,), float(rank), device="cuda"), torch.ones(4, device="cuda")
messages = dist.new_group()
dist.all_reduce(total)
dist.all_reduce(total, group=messages)
if rank == 0:
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, block, 1, messages)])
    dist.all_reduce(total)
else:
    dist.all_reduce(total)
    works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, block, 0, messages)])
for work in works:
    work.wait()
assert block.sum().item() == 0
