"""Rows and columns of a square of ranks, in one order.

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
value = torch.full((4,), float(rank), device="cuda")
dist.all_reduce(value, group=rows[rank // 2])
dist.all_reduce(value, group=columns[rank % 2])
assert value.tolist() == [6.0] * 4
