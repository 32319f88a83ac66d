"""Two workers call each other: what lies on the host arrives, what lies on a device is refused."""

import json
import os
import sys
from pathlib import Path

import torch
from torch.distributed import rpc

rank = int(os.environ["RANK"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
refused: list[str] = []
if rank == 0:
    assert rpc.rpc_sync("worker1", torch.add, (torch.ones(2), 1)).tolist() == [2, 2]
    assert rpc.rpc_sync("worker1", len, (torch.ones(2),)) == 2
    for function in (torch.neg, len):
        try:
            rpc.rpc_sync("worker1", function, (torch.ones(2, device="cuda"),))
        except RuntimeError as error:
            refused.append(str(error))
rpc.shutdown()
Path(f"{sys.argv[1]}.{rank}").write_text(json.dumps({"refused": refused}))
