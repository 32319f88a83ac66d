"""One rank of a tensor-parallel layer skips the part that the other waits for.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (2,))
layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).cuda()
layer = parallelize_module(layer, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
tokens = torch.ones(4, 8, device="cuda")
layer(tokens).sum().backward()
if rank == 0:
    layer(tokens).sum()  # finding: collective-missing
