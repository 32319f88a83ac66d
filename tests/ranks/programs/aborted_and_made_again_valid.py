"""All ranks abort the default group, and make it again: on another port, where no rank can meet the old store.

Runs with 2 ranks.
"""

import os
import socket

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
dist.init_process_group("nccl")
value = torch.ones(4, device="cuda")
dist.all_reduce(value)
port = [socket.create_server(("127.0.0.1", 0)).getsockname()[1]]
dist.broadcast_object_list(port)
os.environ["MASTER_PORT"] = str(port[0])
backend = dist.group.WORLD._get_backend(torch.device("cuda"))
assert backend._is_initialized()
del backend  # which keeps the store of the group
dist.distributed_c10d._abort_process_group()
assert not dist.is_initialized()
dist.init_process_group("nccl")
dist.all_reduce(value)
assert value.tolist() == [4.0] * 4
dist.group.WORLD._get_backend(torch.device("cuda")).abort()
try:
    dist.all_reduce(value)
except dist.DistBackendError as raised:
    error = raised
assert f"NCCL communicator was aborted on rank {rank}" in str(error)
