"""An asynchronous all-reduce whose Work is dropped, and whose result is used at once.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
kept = dist.all_reduce(torch.ones(8, device="cuda"), async_op=True)
kept.wait()
loss = torch.ones(8, device="cuda")
dist.all_reduce(loss, async_op=True)  # finding: wait-missing
torch.ones(8, device="cuda").sum().item()
dist.destroy_process_group()
