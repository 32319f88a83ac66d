"""Objects whose pickles differ in size.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
found = [None] * size
dist.all_gather_object(found, {"text": "x" * (1 + 100 * rank)})
assert [len(one["text"]) for one in found] == [1, 101]
