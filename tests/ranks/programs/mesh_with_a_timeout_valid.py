"""The group of a mesh is given more time.

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
dist.distributed_c10d._set_pg_timeout(timedelta(hours=1), group)
value = torch.ones(4, device="cuda")
dist.all_reduce(value)
if rank == 0:
    time.sleep(1200)
dist.all_reduce(value, group=group)
dist.destroy_process_group()
