"""The host waits in `wait`, whose error can be caught.

Runs with 2 ranks.
"""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=5))
value = torch.ones(4, device="cuda")
if rank == 1:
    time.sleep(60)
try:
    dist.all_reduce(value)  # finding: collective-timeout
except dist.DistBackendError as raised:
    error = raised
text = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, "
assert rank or text + "Timeout(ms)=5000) ran for 6" in str(error), error
sys.exit(3)
