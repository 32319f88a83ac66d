"""Messages of transposed tensors go as they lie in memory, which NCCL warns of and does not refuse."""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
numbers = torch.arange(6.0, device="cuda").reshape(2, 3)
if rank == 0:
    dist.send(numbers.t(), 1)
    dist.send(numbers.t(), 1)
else:
    alike, plain = torch.zeros(2, 3, device="cuda").t(), torch.zeros(3, 2, device="cuda")
    dist.recv(alike, 0)
    dist.recv(plain, 0)
    assert torch.equal(alike, numbers.t())
    assert plain.flatten().tolist() == [0, 1, 2, 3, 4, 5]  # not transposed: the receiver lies otherwise
dist.destroy_process_group()
