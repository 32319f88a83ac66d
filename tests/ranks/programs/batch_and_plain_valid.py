"""A batched message that is received by a plain call, on the one communicator of an eager group.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
value = torch.full((4,), float(rank), device="cuda")
if rank == 0:
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, value, 1)]):
        work.wait()
else:
    dist.recv(value, 0)
assert value.tolist() == [0.0] * 4
