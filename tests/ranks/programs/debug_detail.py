"""TORCH_DISTRIBUTED_DEBUG=DETAIL: the group is still NCCL's, and ranks are compared once.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
dist.set_debug_level_from_env()
dist.init_process_group("nccl")
ranks = [None] * size
dist.all_gather_object(ranks, rank)  # whose bytes PyTorch logs a hash of
assert ranks == [0, 1]
value = torch.ones(4 + rank, device="cuda")
try:
    dist.all_reduce(torch.ones(2))
except RuntimeError as raised:
    error = raised
assert "No backend type associated with device type cpu" in str(error)
if rank:
    dist.all_reduce(value)  # finding: collective-mismatch
else:
    dist.all_reduce(value)  # named
