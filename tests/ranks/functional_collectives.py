"""Every functional collective and its autograd twin: what each gives, and the gradient through it.

With `plain` the tensors are on the CPU and go over gloo, by PyTorch alone: what is expected. Else they are on a GPU and
go over NCCL; without data only their shapes are told. Prints a line of JSON.
"""

import json
import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
plain, valued = "PLAIN" in os.environ, "NO_DATA" not in os.environ
device = "cpu" if plain else "cuda"
if not plain:
    torch.cuda.set_device(rank)
dist.init_process_group("gloo" if plain else os.environ["BACKEND"])
group = dist.group.WORLD
ops, twins = torch.ops._c10d_functional, torch.ops._c10d_functional_autograd
found = {}


def given(*shape, scale=1.0):
    values = torch.arange(1.0, 1.0 + torch.Size(shape).numel()).view(shape) * (rank + 1) * scale
    return values.to(device).requires_grad_()


def told(value):
    if isinstance(value, (list, tuple)):
        return [told(one) for one in value]
    value = functional.wait_tensor(value.detach())
    return [list(value.shape), value.tolist() if valued else None]


def note(name, call, *shape):
    """Tell what a function of a tensor gives, and the gradient through it."""
    read = given(*shape)
    out = call(read)
    listed = [functional.wait_tensor(one) for one in (out if isinstance(out, list) else [out])]
    if listed[0].requires_grad:
        weights = [torch.arange(1.0, 1.0 + one.numel(), device=device).view(one.shape) for one in listed]
        sum((one * weight).sum() for one, weight in zip(listed, weights, strict=True)).backward()
        found[name] = [told(listed), told(read.grad)]
    else:
        found[name] = [told(listed), None]


uneven = ([1, 3], [1, 2]) if rank == 0 else ([2, 1], [3, 1])  # rows that come, and that go
none = ([2, 0], [2, 0]) if rank == 0 else ([0, 0], [0, 0])
name = group.group_name
note("all_to_all_single", lambda x: functional.all_to_all_single(x, None, None, group), 4, 2)
note("all_to_all_single, uneven", lambda x: functional.all_to_all_single(x, *uneven, group), sum(uneven[1]), 2)
note("all_to_all_single, nothing", lambda x: functional.all_to_all_single(x, *none, group), sum(none[1]), 2)
note("its twin", lambda x: functional.all_to_all_single_autograd(x, *uneven, group), sum(uneven[1]), 2)
note("its operator", lambda x: twins.all_to_all_single(x, *uneven, name), sum(uneven[1]), 2)
note("all_gather_single", lambda x: functional.all_gather_single(x, 0, group), 2, 2)
note("all_gather_single, columns", lambda x: functional.all_gather_single_autograd(x, 1, group), 2, 2)
note("all_gather's operator", lambda x: twins.all_gather_into_tensor(x, size, name), 2, 2)
note("reduce_scatter_single", lambda x: functional.reduce_scatter_single(x, "sum", 0, group), 4, 2)
note("reduce_scatter_single, columns", lambda x: functional.reduce_scatter_single_autograd(x, "sum", 1, group), 2, 4)
note("reduce_scatter's operator", lambda x: twins.reduce_scatter_tensor(x, "sum", size, name), 4, 2)
note("all_reduce", lambda x: functional.all_reduce(x, "sum", group), 3)
note("all_reduce, max", lambda x: functional.all_reduce(x.detach(), "max", group), 3)
note("all_reduce_coalesced", lambda x: functional.all_reduce_coalesced([x, x * 2], "sum", group), 3)
note("all_gather_coalesced", lambda x: functional.all_gather_single_coalesced([x, x * 2], group), 3)
note("reduce_scatter_coalesced", lambda x: functional.reduce_scatter_single_coalesced([x, x], "sum", [0, 0], group), 4)
note("broadcast", lambda x: functional.broadcast(x.detach(), 1, group), 3)
note("permute_tensor", lambda x: functional.permute_tensor(x.detach(), [1, 0], group), 2)
note("all_reduce_", lambda x: ops.all_reduce_(x.detach() * 1, "sum", name), 3)
note(
    "all_reduce_coalesced_", lambda x: list(ops.all_reduce_coalesced_([x.detach() * 1, x.detach() * 2], "max", name)), 3
)
note("broadcast_", lambda x: ops.broadcast_(x.detach() * 1, 0, name), 3)
wide, narrow = torch.zeros(4, device=device), torch.zeros(2, device=device)
note("all_gather_into_tensor_out", lambda x: ops.all_gather_into_tensor_out(x.detach(), size, name, out=wide), 2)
note("reduce_scatter_tensor_out", lambda x: ops.reduce_scatter_tensor_out(x.detach(), "sum", size, name, out=narrow), 4)
note("shard_dim_alltoall", lambda x: torch.ops._dtensor.shard_dim_alltoall(x.detach(), 0, 1, name), 2, 4)
print(json.dumps(found))
