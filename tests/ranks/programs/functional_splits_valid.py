"""An expert-parallel layer: tokens are dispatched to the ranks of their experts, and combined, with gradients.

One rank has no token for the other, and one expert gets none at all.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
for sent in ([1, 3], [4, 0]), ([2, 2], [2, 2]), ([0, 4], [0, 4]):
    tokens = torch.full((4, 8), rank + 1.0, device="cuda", requires_grad=True)
    mine, theirs = sent[rank], [sent[0][rank], sent[1][rank]]
    at_experts = functional.all_to_all_single_autograd(tokens, theirs, mine, dist.group.WORLD)
    assert at_experts.shape == (sum(theirs), 8)
    assert at_experts[:, 0].tolist() == [1.0] * theirs[0] + [2.0] * theirs[1]
    back = functional.all_to_all_single(at_experts * (rank + 1), mine, theirs, dist.group.WORLD)
    (back * 2).sum().backward()
    assert back[:, 0].tolist() == [rank + 1.0] * mine[0] + [2 * (rank + 1.0)] * mine[1]
    assert tokens.grad[:, 0].tolist() == [2.0] * mine[0] + [4.0] * mine[1]
