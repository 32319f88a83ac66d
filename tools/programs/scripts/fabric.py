"""A training loop on Lightning Fabric: two GPUs, `strategy` and `precision` as given.

windtunnel run --gpus 2xA100 fabric.py ddp 16-mixed
windtunnel run --gpus 2xA100 fabric.py fsdp bf16-mixed
"""

import sys

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(strategy: str = "ddp", precision: str = "32-true") -> None:
    """Fit a line with a small network and say the loss that all ranks agree on."""
    fabric = Fabric(accelerator="cuda", devices=2, strategy=strategy, precision=precision)
    fabric.launch()
    fabric.seed_everything(1, verbose=False)
    inputs = torch.randn(256, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=16, shuffle=True))
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    model = fabric.setup_module(model)
    optimizer = fabric.setup_optimizers(torch.optim.Adam(model.parameters(), lr=1e-2))
    for _ in range(6):
        for batch, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch).float(), target)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=5.0, error_if_nonfinite=False)
            optimizer.step()
    mean = fabric.all_reduce(loss.detach(), reduce_op="mean")
    fabric.print(f"loss {mean.item():.4f} on {fabric.world_size} ranks, {fabric.device}")
    assert mean.item() < 1.0


if __name__ == "__main__":
    main(*sys.argv[1:])
