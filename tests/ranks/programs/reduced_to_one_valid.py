"""What a reduce leaves on the ranks that it is not for: NCCL what they brought, gloo a part of the sum (pytorch#76527).

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
mine = torch.full((4,), rank + 1.0, device="cuda")


def reduced(root, **how):
    value = mine.clone()
    work = dist.reduce(value, root, async_op=True, **how)
    work.wait()
    assert work.result()[0].data_ptr() == value.data_ptr()
    return value.tolist()


for root in range(size):
    for operation, expected in ((dist.ReduceOp.SUM, 10.0), (dist.ReduceOp.AVG, 2.5), (dist.ReduceOp.MAX, 4.0)):
        assert reduced(root, op=operation) == [expected if rank == root else rank + 1.0] * 4
    scaled = dist._make_nccl_premul_sum(0.5)
    assert reduced(root, op=scaled) == [5.0 if rank == root else rank + 1.0] * 4
second = 2 * (rank // 2) + 1
assert reduced(second, group=pairs[rank // 2]) == [{1: 3.0, 3: 7.0}.get(rank, rank + 1.0)] * 4
