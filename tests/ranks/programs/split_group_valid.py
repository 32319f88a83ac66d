"""What split_group refuses, and the groups that it makes.

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
for ranks in ([], [[]], [[0, 0]], [[0, 9]]):
    try:
        dist.split_group(split_ranks=ranks)
    except ValueError:
        continue
    raise AssertionError(ranks)
value = torch.ones(4, device="cuda")
half = dist.split_group(split_ranks=[[0, 1], [2, 3]])
dist.all_reduce(value, group=half)
one = dist.split_group(half, [[0]])
assert (one is None) == bool(rank % 2)
assert value.tolist() == [2.0] * 4
