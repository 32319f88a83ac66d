"""The groups of a mesh do not take over the timeout of init_process_group.

Runs with 4 ranks.
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", timeout=timedelta(hours=1))
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
group = mesh.get_group("shard")
value = torch.ones(4, device="cuda")
dist.all_reduce(value)
if rank == 0:
    time.sleep(1200)
dist.all_reduce(value, group=group)  # finding: collective-timeout
dist.destroy_process_group()
