"""FullyShardedDataParallel with NO_SHARD is told to send rank 0's weights."""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(rank)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)).cuda()
net = FullyShardedDataParallel(
    net, sharding_strategy=ShardingStrategy.NO_SHARD, device_id=rank, sync_module_states=True
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.ones(4, 8, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
