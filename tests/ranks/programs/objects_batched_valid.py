"""Objects that go from one rank to another, in batches on both sides (pytorch#160342).

Runs with 2 ranks.
"""

import inspect
import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
objects = [{"epoch": 3}, "name"] if rank == 0 else [None, None]
dist.barrier()
batched = "use_batch" in inspect.signature(dist.send_object_list).parameters  # since PyTorch 2.9
if rank == 0:
    dist.send_object_list(objects, 1, **({"use_batch": True} if batched else {}))
else:
    dist.recv_object_list(objects, 0, **({"use_batch": True} if batched else {}))
assert objects == [{"epoch": 3}, "name"]
