"""One rank of an expert-parallel layer expects fewer tokens than it is sent, in a functional collective.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
tokens = torch.ones(4, 8, device="cuda", requires_grad=True)
sent = [1, 3]
received = [1, 1] if rank == 0 else [2, 3]
out = functional.all_to_all_single_autograd(tokens, received, sent, dist.group.WORLD)  # finding: collective-mismatch
out.sum().backward()
