"""A rank keeps its state on the GPU of another, which finds no room: https://github.com/huggingface/accelerate/pull/299."""

import torch
import torch.distributed as dist


def work(rank: int) -> None:
    if rank == 0:
        torch.empty(10 << 30, dtype=torch.uint8, device="cuda")  # finding: out-of-memory


dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
if rank == 1:
    state = torch.empty(10 << 30, dtype=torch.uint8, device="cuda:0")  # finding: context-on-other-gpu
dist.barrier()
work(rank)
