"""Integers, truths and single numbers through every collective and message; each rank writes what it reads, as JSON."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())
torch.set_default_device("cuda")
world = dist.group.WORLD


def reduced(operation: dist.ReduceOp) -> torch.Tensor:
    tensor = torch.tensor([5, rank + 1])
    dist.all_reduce(tensor, op=operation)
    return tensor


def broadcast() -> torch.Tensor:
    tensor = torch.tensor(7 if rank == 0 else 0)
    dist.broadcast(tensor, 0)
    return tensor


def gathered() -> torch.Tensor:
    flat, parts = torch.zeros(2 * size, dtype=torch.int32), [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather_into_tensor(flat, torch.tensor([rank, 3], dtype=torch.int32))
    dist.all_gather(parts, torch.tensor([rank]))
    return torch.cat([flat.long(), *parts])


def exchanged() -> torch.Tensor:
    made = torch.zeros(size, dtype=torch.int64)
    dist.all_to_all_single(made, torch.arange(size) + 10 * rank)
    return torch.cat([made, functional.all_to_all_single(made, None, None, world) + 0])


def counted() -> torch.Tensor:
    count = (torch.arange(10, device="cpu") != rank).sum().cuda()
    return functional.all_reduce(count, "sum", world) + functional.all_reduce(torch.tensor(True), "min", world)


def reduced_to_root() -> torch.Tensor:
    tensor = torch.tensor([rank + 1])
    dist.reduce(tensor, 0)
    return tensor if rank == 0 else torch.tensor([0])


def sent() -> torch.Tensor:
    tensor = torch.tensor([4, 5, rank]) if rank == 0 else torch.zeros(3, dtype=torch.int64)
    if rank < 2:
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    return tensor


def exchanged_by_one() -> torch.Tensor:
    """Only the first rank has rows, for itself: to the others their own parts look even (pytorch#146468)."""
    rows = [2 * (rank == 0), *[0] * (size - 1)]
    dist.all_to_all_single(torch.zeros(rows[0], dtype=torch.int64), torch.arange(rows[0]), rows, rows)
    left_over = torch.arange(size + 1)  # NCCL moves one for each rank (pytorch#101380)
    dist.all_to_all_single(torch.zeros_like(left_over), left_over)
    return torch.tensor(rows)


def numbers() -> torch.Tensor:
    rate, share = torch.tensor([3e-4]), torch.tensor(0.25 * (rank + 1), dtype=torch.bfloat16)
    dist.all_reduce(rate, dist.ReduceOp.MAX)
    dist.all_reduce(share, dist.ReduceOp.AVG)
    told = torch.tensor([0.1 * (rank + 1)])
    if rank < 2:
        dist.send(told, 1) if rank == 0 else dist.recv(told, 0)
    joined = torch.zeros(1) if rank else torch.ones(1)  # as `Join` counts the ranks that still train
    dist.all_reduce(joined)
    return torch.tensor([rate.item(), (share * 2).item(), told.item(), joined.item()], device="cpu")


seen = {
    "sum": reduced(dist.ReduceOp.SUM), "largest": reduced(dist.ReduceOp.MAX), "mean": reduced(dist.ReduceOp.AVG),
    "broadcast": broadcast(), "gathered": gathered(), "exchanged": exchanged(), "counted": counted(),
    "reduced to the root": reduced_to_root(), "sent": sent(),
    "exchanged by one": exchanged_by_one(), "numbers": numbers(),
}  # fmt: skip
Path(f"{sys.argv[1]}.{rank}").write_text(json.dumps({name: tensor.tolist() for name, tensor in seen.items()}))
dist.destroy_process_group()
