"""Messages in line with collectives, in one order on both ranks.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
block, total = torch.full((1024,), float(rank), device="cuda"), torch.ones(4, device="cuda")
for _ in range(3):
    work = dist.isend(block, 1) if rank == 0 else dist.irecv(block, 0)
    dist.all_reduce(total)
    work.wait()
assert (block.sum().item(), total.tolist()) == (0, [8.0] * 4)
