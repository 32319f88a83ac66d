"""Two replicas, sharded over two ranks each, of one seed. Runs with 4 ranks."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)).cuda()
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
fully_shard(net, mesh=mesh)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.ones(4, 8, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
