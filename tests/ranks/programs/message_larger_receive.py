"""Three numbers are sent and five received, in a batch (pytorch#113376).

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
if rank == 0:
    operation = dist.P2POp(dist.isend, torch.ones(3, device="cuda"), 1)
else:
    operation = dist.P2POp(dist.irecv, torch.zeros(5, device="cuda"), 0)
for work in dist.batch_isend_irecv([operation]):  # finding: collective-mismatch
    work.wait()
