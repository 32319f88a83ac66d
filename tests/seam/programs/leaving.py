"""Two ranks that meet once and leave their group; each says how many of gloo's threads are left."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist


def threads() -> int:
    """The threads of gloo in this process that run collectives."""
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return names.count("pt_gloo_runloop")


rank = int(os.environ["RANK"])
dist.init_process_group("nccl")
torch.cuda.set_device(rank)
dist.all_reduce(torch.ones(8, device="cuda"))
before = threads()
dist.destroy_process_group()
print(f"{before} {threads()}\n", end="", flush=True)
