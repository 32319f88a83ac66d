"""Functional collectives one after another, each with a reduction of its own, and gradients through them.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
group = dist.group.WORLD
loss = torch.full((2,), float(rank + 1), device="cuda")
assert functional.all_reduce(loss, "avg", group).tolist() == [1.5] * 2
assert functional.all_reduce(loss, "max", group).tolist() == [2.0] * 2
parts = torch.arange(4.0, device="cuda", requires_grad=True)
whole = functional.all_gather_single_autograd(parts, 0, group)
mine = functional.reduce_scatter_single_autograd(whole * (rank + 1), "sum", 0, group)
mine.sum().backward()
assert mine.tolist() == [0.0, 3.0, 6.0, 9.0]
assert parts.grad.tolist() == [3.0] * 4
