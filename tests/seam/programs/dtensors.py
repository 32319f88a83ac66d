"""Two ranks: tensors around tensors know their device, draw random numbers, and move nothing that is in place."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (2,))

torch.manual_seed(3)
shards = distribute_tensor(torch.zeros(8, 4, device=device), mesh, [Shard(0)])
assert shards.device == device
torch.nn.init.normal_(shards)
whole = shards.full_tensor()
assert whole.device == device
assert whole.unique().numel() == whole.numel(), "every shard has numbers of its own"

with torch.device("meta"):
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
parallel = parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
parallel.to_empty(device=device)
for layer in (parallel[0], parallel[2]):
    layer.reset_parameters()
parallel(torch.ones(3, 4, device=device)).sum().backward()
assert all(parameter.grad.device == device for parameter in parallel.parameters())

sharded = fully_shard(torch.nn.Linear(4, 4).to(device))
sharded(torch.ones(2, 4, device=device)).sum().backward()
torch.cuda.set_sync_debug_mode("error")
norm = torch.nn.utils.clip_grad_norm_(sharded.parameters(), 1.0)
torch.cuda.set_sync_debug_mode("default")

gathered = torch.empty(1, 2, device=device)
dist.all_gather_into_tensor(gathered, torch.tensor([float(rank)], device=device))
line = f"rank {rank}: {gathered.tolist()} {norm.full_tensor().device}\n"
print(line, end="", flush=True)  # one write: the ranks share a pipe
dist.destroy_process_group()
