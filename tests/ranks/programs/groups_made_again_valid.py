"""Many jobs after one another, whose models outlive their groups: no thread of gloo's is waited for in vain.

Runs with 2 ranks.
"""

import os
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
folder = os.path.join(tempfile.gettempdir(), f"groups-{os.environ['MASTER_PORT']}")
for number in range(12):
    dist.init_process_group("nccl", init_method=f"file://{folder}-{number}", rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(8, 4).cuda(), device_ids=[rank])
    model(torch.ones(4, 8, device="cuda")).sum().backward()
    dist.destroy_process_group()
    del model
