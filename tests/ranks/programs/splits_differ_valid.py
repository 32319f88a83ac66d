"""Ranks tell one another how many tokens they send.

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
sent = [(rank + other) % 3 + 1 for other in range(size)]
counts = torch.empty(size, dtype=torch.int64, device="cuda")
dist.all_to_all_single(counts, torch.tensor(sent, device="cuda"))
received = counts.tolist()
tokens = torch.arange(float(sum(sent)), device="cuda")
out = torch.empty(sum(received), device="cuda")
dist.all_to_all_single(out, tokens, received, sent)
assert received == [(rank + other) % 3 + 1 for other in range(size)]
