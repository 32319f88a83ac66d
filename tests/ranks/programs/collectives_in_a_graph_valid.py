"""A CUDA graph holds NCCL's collectives: each replay sends what lies in their memory then.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
x, wide = torch.full((4,), float(rank), device="cuda"), torch.zeros(8, device="cuda")
dist.all_reduce(torch.ones(1, device="cuda"))


def work():
    y = x + 1
    dist.all_reduce(y)
    y = y * 2
    dist.all_reduce(y, dist.ReduceOp.AVG)
    dist.broadcast(y, 1)
    dist.all_gather_into_tensor(wide, y + rank)
    return y


graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = work()
for turn in range(3):
    x.fill_(rank + 10.0 * turn)
    graph.replay()
    expected = 2 * (2 * 10.0 * turn + 3)
    assert y.tolist() == [expected] * 4, (turn, y.tolist())
    assert wide.tolist() == [expected] * 4 + [expected + 1] * 4, (turn, wide.tolist())
dist.destroy_process_group()
