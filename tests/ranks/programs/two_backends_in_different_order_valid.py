"""One rank calls NCCL first, the other gloo: two backends of one group, whose calls need no common order.

NCCL's calls do not hold up the host, so neither rank waits for the other before it has called both: at once, as
functional collectives, with objects, in place or not, several in a row.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("cpu:gloo,cuda:nccl")
gpu, cpu = torch.zeros(4, device="cuda"), torch.zeros(4)
dist.all_reduce(gpu)  # NCCL's first call makes its communicator, for which the hosts wait


def on_gpu(kind):
    if kind == "asynchronous":
        dist.all_reduce(gpu, async_op=True).wait()
    elif kind == "functional":
        return functional.all_reduce(gpu, "sum", dist.group.WORLD)
    elif kind == "functional, uneven":
        return functional.all_to_all_single(gpu, [1 + rank] * 2, [1, 2], dist.group.WORLD)
    elif kind == "several":
        works = [dist.all_reduce(gpu, async_op=True) for _ in range(3)]
        works[-1].wait()
    elif kind == "into another":
        dist.all_gather_into_tensor(wide, gpu)
    else:
        dist.all_reduce(gpu)
    return None


def on_cpu(kind):
    if kind == "objects":
        found = [None] * size
        dist.all_gather_object(found, {"rank": rank})
        assert found == [{"rank": 0}, {"rank": 1}]
    dist.all_reduce(cpu)


expected = {
    "at once": [3.0] * 4, "asynchronous": [3.0] * 4, "objects": [3.0] * 4, "several": [12.0] * 4,
    "functional": [3.0] * 4, "functional, uneven": [1.0, 2.0] if rank == 0 else [1.0, 1.0, 2.0, 2.0],
    "into another": [1.0] * 4 + [2.0] * 4,
}  # fmt: skip
for kind, values in expected.items():
    gpu = torch.full((3 if "uneven" in kind else 4,), rank + 1.0, device="cuda")
    wide = torch.empty(8, device="cuda")
    cpu.fill_(10.0 * (rank + 1))
    if rank == 0:
        made = on_gpu(kind)
        on_cpu(kind)
    else:
        on_cpu(kind)
        made = on_gpu(kind)
    found = wide if kind == "into another" else gpu if made is None else made
    assert found.tolist() == values, (kind, found.tolist())
    assert cpu.tolist() == [30.0] * 4, (kind, cpu.tolist())
dist.destroy_process_group()
