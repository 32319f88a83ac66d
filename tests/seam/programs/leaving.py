"""Two ranks that meet once and leave their group; each says whether gloo had threads, and how many are left."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from windtunnel.seam.torch.state.looks import SAMPLERS


def threads() -> int:
    """The threads of this process; gloo's have names of their own in newer versions of PyTorch alone.

    Those that look at what the host works at are left out: they abort nothing.
    """
    return len(list(Path("/proc/self/task").iterdir())) - len(SAMPLERS)


rank = int(os.environ["RANK"])
alone = threads()
dist.init_process_group("nccl")
torch.cuda.set_device(rank)
dist.all_reduce(torch.ones(8, device="cuda"))
more = threads() > alone
dist.destroy_process_group()
print(f"{more} {threads() - alone}\n", end="", flush=True)
