"""Every rank exchanges with every rank, itself among them, in one batch (PyTorch's test_batch_isend_irecv_nccl).

Runs with 4 ranks.
"""

import gc
import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
gc.disable()
before = torch.cuda.memory_allocated()
for turn in range(2):
    received = [torch.full((other + 1,), -1.0, device="cuda") for other in range(size)]
    messages = []
    for other in range(size):
        mine = torch.full((rank + 1,), other + 10.0 * turn, device="cuda")
        both = [dist.P2POp(dist.irecv, received[other], other), dist.P2POp(dist.isend, mine, other)]
        messages += both if turn else both[::-1]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    assert [value.tolist() for value in received] == [[rank + 10.0 * turn] * (other + 1) for other in range(size)]
    del received, messages, mine, both, work
    assert torch.cuda.memory_allocated() == before
