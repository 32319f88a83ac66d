"""One rank of an expert-parallel layer expects fewer tokens than are sent to it (vllm#48720).

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
tokens = torch.arange(16.0, device="cuda")
sent = [4, 4, 4, 4]
received = [4, 4, 4, 3] if rank == 2 else [4, 4, 4, 4]
out = torch.empty(sum(received), device="cuda")
dist.all_to_all_single(out, tokens, received, sent)  # finding: collective-mismatch
