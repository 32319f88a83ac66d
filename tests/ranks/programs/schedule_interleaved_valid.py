"""A pipeline in which each of two ranks has two stages, so that messages go round, after a data-parallel mean."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
dist.init_process_group("nccl", device_id=device)
torch.manual_seed(0)
parts = [nn.Sequential(*(nn.Linear(64, 64) for _ in range(1 + part))).to(device) for part in (rank, rank + ranks)]
stages = [
    PipelineStage(layers, part, 2 * ranks, device) for layers, part in zip(parts, (rank, rank + ranks), strict=True)
]
schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=nn.functional.mse_loss)
for _ in range(2):
    mean = torch.ones(1 << 20, device=device)
    dist.all_reduce(mean)
    if rank == 0:
        schedule.step(torch.randn(32, 64, device=device))
    else:
        schedule.step(target=torch.randn(32, 64, device=device), losses=[])
for layers in parts:
    assert all(parameter.grad is not None for parameter in layers.parameters())
dist.destroy_process_group()
