"""Rank 0 alone loads weights into a model that is wrapped already."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(rank)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)).cuda()
net = DistributedDataParallel(net, device_ids=[rank])  # finding: unequal-replicas
if rank == 0:
    net.module[0].load_state_dict({"weight": torch.ones(8, 8), "bias": torch.zeros(8)})
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.ones(4, 8, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
