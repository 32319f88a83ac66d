"""Asynchronous collectives that are waited for by their future, a later one, polling, or the whole device.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
values = [torch.ones(8, device="cuda") for _ in range(4)]
dist.all_reduce(values[0], async_op=True).get_future().wait()
dist.all_reduce(values[1], async_op=True)
dist.all_reduce(values[2], async_op=True).wait()
dist.all_reduce(values[3], async_op=True)
torch.cuda.synchronize()
assert sum(value.sum().item() for value in values) == 64
dist.destroy_process_group()
