"""All ranks spend a while on the host, longer than one of them may while another waits.

Runs with 2 ranks. Stuck after 1 seconds.
"""

import os
import threading

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(4, device="cuda")
dist.all_reduce(value)
threading.Event().wait(4)
dist.all_reduce(value)
