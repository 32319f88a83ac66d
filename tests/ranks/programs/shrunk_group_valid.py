"""Two ranks go on without the third, as the default group.

Runs with 3 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
value = torch.ones(4, device="cuda")
dist.all_reduce(value)
if rank != 1 and hasattr(dist, "shrink_group"):
    group = dist.shrink_group([1])
    assert (dist.get_rank(), dist.get_world_size()) == (rank // 2, 2)
    dist.all_reduce(value)
    dist.all_reduce(value, group=group)
    assert value.tolist() == [12.0] * 4
