"""Three groups of two ranks each, in a circle.

Runs with 3 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
pairs = [dist.new_group([one, (one + 1) % 3]) for one in range(3)]
value = torch.ones(4, device="cuda")
dist.all_reduce(value, group=pairs[rank])  # finding: collective-deadlock
dist.all_reduce(value, group=pairs[rank - 1])
