"""A group that was never used does not hinder the next one of its name, in the same store.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
# Of its own: a store that `init_process_group` makes ends with its group, and the other rank might still ask that one.
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, is_master=rank == 0)
for _ in range(4):
    dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
    dist.destroy_process_group()
dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
value = torch.full((4,), rank + 1.0, device="cuda")
dist.all_reduce(value)
assert value.tolist() == [3.0] * 4
dist.destroy_process_group()
