"""Our Trainer on two ranks, with a checkpoint every step; it goes on from the last one. Runs with 2 ranks."""

import functools
import hashlib
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from windtunnel.errors import UsageError
from windtunnel.train import Checkpoints, Trainer

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
x = torch.randn(48, 8, generator=torch.Generator().manual_seed(3))
data = DataLoader(TensorDataset(x, x[:, :1] * 2), 8, shuffle=True, num_workers=int(os.environ.get("WORKERS", "0")))
checkpoints = Checkpoints(os.environ["CHECKPOINTS"], every_steps=1, keep=2)
trainer = Trainer(2, num_gpus=2, strategy="ddp", progress=False, checkpoint=checkpoints, seed=7)
try:
    trainer.fit(model, data, loss=nn.MSELoss(), optimizer=functools.partial(torch.optim.Adam, lr=0.05), resume=True)
except UsageError as error:
    print(f"sentence: {error}", flush=True)
    raise SystemExit(1) from None
weights = torch.cat([parameter.detach().cpu().reshape(-1) for parameter in model.parameters()])
print(
    f"weights {hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]} {bool(weights.isfinite().all())}", flush=True
)
