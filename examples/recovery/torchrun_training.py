"""A loop by hand on two GPUs, with a checkpoint every step; torchrun starts it again, and it goes on from the last one.

    CHECKPOINTS=run windtunnel run --gpus 2xA100 --nproc-per-node 2 examples/recovery/torchrun_training.py

`CHECKPOINTS` names the folder. At the end each rank prints a hash of its weights, and whether they are finite.
"""

import hashlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 4
FOLDER = Path(os.environ["CHECKPOINTS"])

if __name__ == "__main__":
    rank, device = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    net = DistributedDataParallel(torch.nn.Linear(8, 4).cuda(), device_ids=[device])
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    last = FOLDER / "last.pt"
    done = 0
    if last.exists():
        state = torch.load(last, map_location="cuda")
        done = state["done"]
        net.module.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
    for step in range(done, STEPS):
        torch.manual_seed(10 * step + rank)
        net(torch.randn(4, 8, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:  # under another name first: who dies meanwhile leaves the one before
            draft = FOLDER / "draft.pt"
            torch.save({"done": step + 1, "net": net.module.state_dict(), "optimizer": optimizer.state_dict()}, draft)
            draft.rename(last)
        dist.barrier()
    weights = net.module.weight.detach().cpu()
    name, finite = hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16], bool(weights.isfinite().all())
    print(f"weights {name} {finite}\n", end="", flush=True)
    dist.destroy_process_group()
