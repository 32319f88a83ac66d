"""The default group is destroyed and made again: on another port, where no rank can meet the old store.

Runs with 2 ranks.
"""

import os
import socket

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
for _ in range(2):
    value = torch.ones(2, device="cuda")
    dist.all_reduce(value)
    port = [socket.create_server(("127.0.0.1", 0)).getsockname()[1]]
    dist.broadcast_object_list(port)
    os.environ["MASTER_PORT"] = str(port[0])
    dist.destroy_process_group()
    dist.init_process_group("nccl")
