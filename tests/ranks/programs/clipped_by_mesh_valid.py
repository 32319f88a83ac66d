"""The norms of two meshes are combined.

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("one", "two"))
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).cuda()
fully_shard(net[0], mesh=mesh["one"])
fully_shard(net[1], mesh=mesh["two"])
net(torch.ones(2, 8, device="cuda")).sum().backward()
norms = [torch.nn.utils.get_total_norm([p.grad for p in layer.parameters()]).full_tensor() for layer in net]
for layer in net:
    torch.nn.utils.clip_grads_with_norm_(layer.parameters(), 1.0, torch.stack(norms).norm())
dist.destroy_process_group()
