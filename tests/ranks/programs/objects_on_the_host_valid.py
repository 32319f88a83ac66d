"""Tensors in objects are moved to the host first."""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
found = [None, None]
dist.all_gather_object(found, {"x": torch.ones(4, device="cuda").cpu()})
dist.destroy_process_group()
