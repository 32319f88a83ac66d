"""NCCL has no 16-bit integers, in messages as in collectives; the receiver's error is caught.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
values = torch.ones(4, device="cuda", dtype=torch.int16)
said = ""
try:
    dist.send(values, 1) if rank == 0 else dist.recv(values, 0)
except TypeError as error:
    said = str(error)
assert said == "Input tensor data type is not supported for NCCL process group: Short"
