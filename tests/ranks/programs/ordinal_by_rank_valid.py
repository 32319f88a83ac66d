"""Each rank sees one GPU, which is cuda:0 to it."""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
torch.cuda.set_device(0)
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(4, device="cuda"))
dist.destroy_process_group()
