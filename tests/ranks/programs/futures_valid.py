"""The futures of asynchronous collectives.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
whole, part = torch.ones(4, device="cuda"), torch.empty(2, device="cuda")
(found,) = dist.reduce_scatter_tensor(part, whole, op=dist.ReduceOp.AVG, async_op=True).get_future().wait()
assert found.tolist() == part.tolist() == [1.0, 1.0]
future = dist.all_reduce(whole, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
assert future.wait().tolist() == [4.0] * 4
