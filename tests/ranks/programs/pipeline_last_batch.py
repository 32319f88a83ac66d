"""The last batch of a pipeline is smaller, its buffers are not (pytorch#126600).

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(0)
stage = PipelineStage(torch.nn.Linear(8, 8).cuda(), rank, size, torch.device("cuda", rank))
schedule = Schedule1F1B(stage, 2, loss_fn=torch.nn.functional.mse_loss)
for batch in (8, 8, 6):
    tokens, target = torch.ones(batch, 8, device="cuda"), torch.ones(batch, 8, device="cuda")
    if rank == 0:
        schedule.step(tokens)
    else:
        schedule.step(target=target)  # finding: collective-mismatch
