"""Ranks agree on the largest size first, and pad.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
count = torch.tensor(8 - rank, device="cuda")
dist.all_reduce(count, dist.ReduceOp.MAX)
scores = torch.zeros(int(count), device="cuda")
scores[: 8 - rank] = 1
dist.all_reduce(scores)
assert scores.tolist() == [2.0] * 7 + [1.0]
