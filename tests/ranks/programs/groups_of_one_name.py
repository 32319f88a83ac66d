"""Each rank makes its own group alone, so that two groups have one name (pytorch#130102, pytorch#38375).

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
group = dist.new_group([0, 3] if rank in (0, 3) else [1, 2])  # finding: collective-mismatch
value = torch.full((1,), float(rank), device="cuda")
dist.all_reduce(value, group=group)
