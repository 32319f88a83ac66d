"""Rank 0 alone reads the validation data, with a sampler of one replica; batches come from a batch sampler."""

import os

import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
data = TensorDataset(torch.arange(16.0))
sampler = DistributedSampler(data)
total = torch.zeros(1, device="cuda")
for (batch,) in DataLoader(data, batch_sampler=BatchSampler(sampler, 4, drop_last=False)):
    total += batch.cuda().sum()
if rank == 0:
    for (batch,) in DataLoader(data, batch_size=4, sampler=DistributedSampler(data, num_replicas=1, rank=0)):
        total += batch.cuda().sum()
dist.all_reduce(total)
dist.destroy_process_group()
