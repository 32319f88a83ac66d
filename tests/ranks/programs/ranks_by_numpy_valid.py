"""Groups whose ranks are NumPy's numbers, as those of nanotron's ParallelContext are.

Runs with 4 ranks.
"""

import os

import numpy as np
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mesh = np.arange(4).reshape(2, 2)
rows = [dist.new_group(ranks=ranks) for ranks in mesh]
columns = [dist.new_group(ranks=[column[0], column[1]]) for column in mesh.T]
value = torch.ones(4, device="cuda")
dist.all_reduce(value, group=rows[rank // 2])
dist.broadcast(value, src=mesh[0, rank % 2], group=columns[rank % 2])
dist.all_gather_object([None] * 2, int(value[0]), group=rows[rank // 2])
dist.destroy_process_group()
