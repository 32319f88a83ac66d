"""Each rank sees one GPU, as where a scheduler gives each task its own, and takes the one of its number.

Rank 1 ends by it before it has used a GPU.
"""

import os

import torch

rank = int(os.environ["RANK"])
os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
torch.cuda.set_device(rank)  # finding: known-error
x = torch.ones(4, device="cuda")
