"""Batches at a growing distance, of which not all ranks have the same peers (pytorch#73960).

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value, received = torch.full((2,), float(rank), device="cuda"), torch.zeros(2, device="cuda")
for distance in range(1, size):
    operations = []
    if rank + distance < size:
        operations.append(dist.P2POp(dist.isend, value, rank + distance))
    if rank >= distance:
        operations.append(dist.P2POp(dist.irecv, received, rank - distance))
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    dist.barrier()
    assert rank < distance or received.tolist() == [float(rank - distance)] * 2
