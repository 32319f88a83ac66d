"""Eight ranks reduce, gather and shift.

Runs with 8 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(8, device="cuda")
dist.all_reduce(value)
whole = torch.empty(64, device="cuda")
dist.all_gather_into_tensor(whole, value)
part = torch.empty(8, device="cuda")
dist.reduce_scatter_tensor(part, whole)
assert part.tolist() == [64.0] * 8
