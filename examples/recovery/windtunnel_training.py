"""windtunnel's Trainer on two GPUs, with a checkpoint every step; started again it goes on from the last one.

    CHECKPOINTS=run windtunnel run --gpus 2xA100 --nproc-per-node 2 examples/recovery/windtunnel_training.py

`CHECKPOINTS` names the folder. At the end each rank prints a hash of its weights.
"""

import functools
import hashlib
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from windtunnel.train import Checkpoints, Trainer

STEPS = 4

if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    inputs = torch.randn(4 * STEPS, 8)
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4, shuffle=True)
    trainer = Trainer(
        2,
        num_gpus=2,
        strategy="ddp",
        progress=False,
        seed=7,
        checkpoint=Checkpoints(os.environ["CHECKPOINTS"], every_steps=1, keep=2),
    )
    trainer.fit(model, data, loss=nn.MSELoss(), optimizer=functools.partial(torch.optim.Adam, lr=0.05), resume=True)
    weights = torch.cat([parameter.detach().cpu().reshape(-1) for parameter in model.parameters()])
    print(f"weights {hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]}\n", end="", flush=True)
