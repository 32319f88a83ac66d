"""Splits that do not fit a rank's own tensor are refused before anything is sent (Utils.hpp, checkSplitSizes)."""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine = torch.full((4,), rank + 1.0, device="cuda")
for received, sent, text in (
    ([1, 1], [2, 2], "Split sizes doesn't match total dim 0 size"),
    ([1, 1, 2], [2, 2], "Number of tensor splits not equal to group size"),
    ([2, 2], [3, 2], "Split sizes doesn't match total dim 0 size"),
):
    said = ""
    try:
        dist.all_to_all_single(torch.zeros(4, device="cuda"), mine, received, sent)
    except RuntimeError as error:
        said = str(error)
    assert text in said
theirs = torch.zeros(4, device="cuda")
dist.all_to_all_single(theirs, mine, [1, 3] if rank == 0 else [3, 1], [1, 3] if rank == 0 else [3, 1])
assert theirs.tolist() == ([1.0, 2.0, 2.0, 2.0] if rank == 0 else [1.0, 1.0, 1.0, 2.0])
