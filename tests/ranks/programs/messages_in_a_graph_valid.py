"""A CUDA graph holds functional collectives and messages: each replay sends what lies in their memory then.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

rank = int(os.environ["RANK"])
other = 1 - rank
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
x, got, reply = torch.full((4,), float(rank), device="cuda"), *torch.zeros(2, 4, device="cuda")
dist.all_reduce(torch.ones(1, device="cuda"))


def work():
    y = x + 1
    total = functional.all_reduce(y, "avg", dist.group.WORLD) * 2
    wide = functional.all_gather_tensor(y, 0, dist.group.WORLD) * 2
    under_way = dist.all_reduce(y, async_op=True)
    under_way.wait()
    sent = total + rank
    for message in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, got, other)]):
        message.wait()
    reply.copy_(got * 10)
    if rank == 0:
        dist.send(reply, 1)
    else:
        dist.recv(reply, 0)
    return total, wide, y, reply * 1


work()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    results = work()
for turn in range(3):
    x.fill_(rank + 10.0 * turn)
    graph.replay()
    first, second = 10.0 * turn + 1, 10.0 * turn + 2
    mean = first + second
    expected = [mean] * 4, [2 * first] * 4 + [2 * second] * 4, [mean] * 4, [10 * (mean + 1)] * 4
    assert [one.tolist() for one in results] == list(expected), (turn, results, expected)
    assert got.tolist() == [mean + other] * 4, (turn, got)
dist.destroy_process_group()
