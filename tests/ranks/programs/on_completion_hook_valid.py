"""A hook is told of each collective and message, in order and with its time on the device.

Runs with 2 ranks.
"""

import os

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import OpType

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
os.environ.pop("TORCH_NCCL_ENABLE_TIMING", None)
dist.init_process_group("nccl")
group = dist.distributed_c10d._get_default_group()
with pytest.raises(ValueError, match="TORCH_NCCL_ENABLE_TIMING"):
    group._register_on_completion_hook(print)
dist.destroy_process_group()

os.environ["TORCH_NCCL_ENABLE_TIMING"] = "1"
dist.init_process_group("nccl")
group = dist.distributed_c10d._get_default_group()
told = []
assert not group._has_hooks()
group._register_on_completion_hook(told.append)
assert group._has_hooks()
with pytest.raises(RuntimeError, match="already registered"):
    group._register_on_completion_hook(told.append)
value = torch.ones(1 << 20, device="cuda")
dist.all_reduce(value)
torch.cuda.synchronize()
dist.all_reduce(value)
assert [info.seq for info in told] == [1]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1000, 10).cuda(), device_ids=[rank])
model(torch.ones(2, 1000, device="cuda")).sum().backward()
if rank == 0:
    dist.send(value, 1)
else:
    dist.recv(value, 0)
received = torch.empty_like(value)
both = [dist.P2POp(dist.isend, value, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
[work] = dist.batch_isend_irecv(both)  # NCCL has one for all of them
work.wait()
dist.destroy_process_group(group)
message, batch = told[-2:]
assert (message.op_type, message.seq) == (OpType.SEND if rank == 0 else OpType.RECV, 1)
assert (batch.op_type, batch.seq) == (OpType.COALESCED, 2)
told = told[:-2]
assert [info.seq for info in told] == list(range(1, len(told) + 1))
assert [info.op_type for info in told[:2]] == [OpType.ALLREDUCE] * 2
assert told[-1].op_type == OpType.ALLREDUCE
for info in (*told, message, batch):
    assert info.active_duration.total_seconds() > 0
    assert info.time_started < info.time_finished
