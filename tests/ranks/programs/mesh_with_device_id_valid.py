"""A mesh in two dimensions where the default group was given its device, and groups that are split off.

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
value = torch.ones(3, device=device) * rank
dist.all_reduce(value, group=mesh["shard"].get_group())
assert value.tolist() == [[1.0] * 3, [5.0] * 3][rank // 2]
dist.all_reduce(value, group=mesh["replicate"].get_group())
assert value.tolist() == [6.0] * 3
part = dist.split_group(split_ranks=[[0, 3]])
assert (part is None) == (rank in (1, 2))
if part is not None:
    dist.all_reduce(value, group=part)
    assert value.tolist() == [12.0] * 3
