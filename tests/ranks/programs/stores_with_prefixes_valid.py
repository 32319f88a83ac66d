"""The default group is made three times in one store of the program's own, each time under another prefix.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, is_master=rank == 0)
for attempt in range(3):
    dist.init_process_group("nccl", store=dist.PrefixStore(f"attempt{attempt}", store), rank=rank, world_size=size)
    value = torch.full((2,), float(attempt), device="cuda")
    dist.all_reduce(value)
    assert value.tolist() == [2.0 * attempt] * 2
    dist.barrier()
    dist.destroy_process_group()
