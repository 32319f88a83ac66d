"""Tensors in objects arrive on the GPU of the rank that sent them."""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
found = [None, None]
dist.all_gather_object(found, {"x": torch.ones(4, device="cuda")})  # finding: context-on-other-gpu
dist.destroy_process_group()
