"""Rank 0 prepares data for five seconds twice; rank 1 waits, for three at most, and for ten more until a call is done.

Runs with 2 ranks.
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", timeout=timedelta(seconds=123))
group = dist.distributed_c10d._get_default_group()
backend = group._get_backend(torch.device("cuda", rank))
value = torch.zeros(10, device="cuda")


def call():
    return group.allreduce(value)


work = call()
assert backend._verify_work_timeout(work, timedelta(seconds=123))
work.wait()
backend._set_default_timeout(timedelta(seconds=3))
if rank == 0:
    time.sleep(5)
    works = [call()]
    time.sleep(5)
    works.append(call())
    work = call()
    assert backend._verify_work_timeout(work, timedelta(seconds=3))
else:
    dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs(timedelta(seconds=10))
    works = [call(), call()]
    assert all(backend._verify_work_timeout(work, timedelta(seconds=13)) for work in works)
    works[0].wait()
    dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs(timedelta(seconds=5))
    torch.cuda.synchronize()
    work = call()
    assert backend._verify_work_timeout(work, timedelta(seconds=8))
for one in (*works, work):
    one.wait()
torch.cuda.synchronize()
work = call()
assert backend._verify_work_timeout(work, timedelta(seconds=3))
work.wait()
