"""A pipeline of torch.distributed.pipelining, one forward and one backward in turn. Runs with 3 ranks."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
dist.init_process_group("nccl", device_id=device)
torch.manual_seed(0)
layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(2 + 4 * rank))).to(device)
schedule = Schedule1F1B(PipelineStage(layers, rank, ranks, device), 6, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
for _ in range(2):
    batch = [torch.randn(48, 64, device=device)] if rank == 0 else []
    losses: list[torch.Tensor] = []
    if rank == ranks - 1:
        schedule.step(target=torch.randn(48, 64, device=device), losses=losses)
        assert len(losses) == 6
    else:
        schedule.step(*batch)
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
dist.destroy_process_group()
