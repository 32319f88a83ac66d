"""Each rank makes its own group alone, and the groups have names by their members.

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
for _ in range(2):
    mine = [0, 3] if rank in (0, 3) else [1, 2]
    group = dist.new_group(mine, use_local_synchronization=True)
    value = torch.full((1,), float(rank), device="cuda")
    dist.all_reduce(value, group=group)
    assert value.item() == sum(mine)
    dist.destroy_process_group(group)
