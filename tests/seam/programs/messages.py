"""Two ranks: messages in batches and plain ones; what rank saw goes to the file that the argument names."""

import json
import os
import sys

import torch
import torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine, theirs = torch.full((1 << 22,), float(rank), device="cuda"), torch.empty(1 << 22, device="cuda")
seen = {}


def taken():
    """Whole MiB of the device that are not PyTorch's tensors."""
    free, total = torch.cuda.mem_get_info()
    return (total - free - torch.cuda.memory_reserved()) >> 20


dist.barrier()
before = taken()
for _ in range(2):
    operations = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
seen["batched"], seen["batched_memory"] = theirs[0].item(), taken() - before
theirs.zero_()
for sender in (0, 1):
    if rank == sender:
        dist.send(mine, 1 - rank)
    else:
        dist.recv(theirs, 1 - rank)
seen["plain"], seen["plain_memory"] = theirs[0].item(), taken() - before
works = [dist.isend(mine[:16], 1 - rank) for _ in range(20)] if rank == 0 else []
dropped = [dist.irecv(theirs[16 * number : 16 * number + 16], 0) for number in range(20)] if rank else []
for work in [*works, *dropped]:
    work.wait()
seen["many"] = theirs[319].item()
with open(f"{sys.argv[1]}.{rank}", "w") as file:
    json.dump(seen, file)
dist.destroy_process_group()
