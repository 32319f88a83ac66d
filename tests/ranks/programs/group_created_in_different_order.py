"""Ranks make the same groups in different order, so that their names do not fit.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
orders = [[[0, 1]], [[1], [0, 1]]]
for ranks in orders[rank]:
    group = dist.new_group(ranks)  # finding: collective-deadlock
value = torch.ones(4, device="cuda")
dist.all_reduce(value)
