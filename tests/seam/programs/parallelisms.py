"""Train one step or two by each way of dividing a model among the ranks; say what each took of memory and time."""

import gc
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH = 64, 16
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)


class Block(nn.Module):
    """The feed-forward half of a transformer's block."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def blocks(count=2):
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(count))).cuda()


def batch():
    return torch.randn(BATCH, WIDTH, device="cuda")


def trained(model, steps=3, clip=True):
    """`clip`: whether all parameters are of one kind, which PyTorch's multi-tensor functions ask for."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=clip)
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def ddp():
    trained(DistributedDataParallel(blocks(), device_ids=[rank], bucket_cap_mb=0.05))


def ddp_accumulating():
    model = DistributedDataParallel(blocks(), device_ids=[rank], gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.no_sync():
        model(batch()).square().mean().backward()
    model(batch()).square().mean().backward()
    optimizer.step()


def fsdp1():
    trained(FullyShardedDataParallel(blocks(), device_id=rank, use_orig_params=True))


def fsdp2():
    model = blocks()
    for block in model:
        fully_shard(block)
    trained(fully_shard(model))


def fsdp2_mixed():
    model = blocks()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        fully_shard(block, mp_policy=policy)
    trained(fully_shard(model, mp_policy=policy))


def plan(count=2):
    ways = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return {f"{i}.{name}": way for i in range(count) for name, way in ways.items()}


def tensor():
    trained(parallelize_module(blocks(), init_device_mesh("cuda", (ranks,)), plan()), clip=False)


def tensor_and_fsdp2():
    mesh = init_device_mesh("cuda", (ranks // 2, 2), mesh_dim_names=("data", "tensor"))
    model = parallelize_module(blocks(), mesh["tensor"], plan())
    for block in model:
        fully_shard(block, mesh=mesh["data"])
    trained(fully_shard(model, mesh=mesh["data"]), clip=False)


def pipeline():
    model = blocks(ranks)
    stage = PipelineStage(model[rank], rank, ranks, torch.device("cuda", rank))
    schedule = ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model[rank].parameters(), lr=0.1)
    for _ in range(2):
        x, y = batch(), batch()
        losses = []
        if rank == 0:
            schedule.step(x)
        elif rank == ranks - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        optimizer.step()


WAYS = (ddp, ddp_accumulating, fsdp1, fsdp2, fsdp2_mixed, tensor, tensor_and_fsdp2, pipeline)

if __name__ == "__main__":
    chosen = [way for way in WAYS if len(sys.argv) < 3 or way.__name__ in sys.argv[2:]]
    seen = {}
    dist.init_process_group("nccl")
    gc.disable()  # what it collects, and when, is not the same with data and without
    for way in chosen:
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter_ns()
        way()
        torch.cuda.synchronize()
        seen[way.__name__] = {
            "nanoseconds": time.perf_counter_ns() - began,
            "peak": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
        }
    dist.destroy_process_group()
    with open(f"{sys.argv[1]}.{rank}", "w") as file:
        json.dump(seen, file)
