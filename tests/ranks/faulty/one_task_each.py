"""Two ranks, each a process of its own without torchrun, as a scheduler starts them; rank 1 ends before it joins."""

import os
import subprocess
import sys

if "RANK" not in os.environ:
    port = sys.argv[2]
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
        )
        for rank in range(2)
    ]
    sys.exit(max(process.wait() for process in ranks))

if os.environ["RANK"] == "1":
    if sys.argv[1] == "raises":
        raise FileNotFoundError("no data on this node")
    if sys.argv[1] == "exits":
        sys.exit("no data on this node")
    if sys.argv[1] == "dies":
        os.kill(os.getpid(), 9)

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["RANK"]))
dist.init_process_group("nccl")
dist.barrier()
dist.destroy_process_group()
