"""Two stages under PyTorch's GPipe schedule.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(0)
stage = PipelineStage(torch.nn.Linear(8, 8).cuda(), rank, size, torch.device("cuda", rank))
schedule = ScheduleGPipe(stage, 4, loss_fn=torch.nn.functional.mse_loss)
tokens, target = torch.ones(8, 8, device="cuda"), torch.ones(8, 8, device="cuda")
for _ in range(2):
    if rank == 0:
        schedule.step(tokens)
    else:
        schedule.step(target=target)
