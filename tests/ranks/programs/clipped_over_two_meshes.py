"""One norm over the gradients of layers that are sharded over different meshes.

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
torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # finding: known-error
dist.destroy_process_group()
