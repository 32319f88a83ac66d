"""A LightningModule in Lightning's Trainer on two GPUs: `strategy` and `precision` as given.

windtunnel run --gpus 2xV100 lightning_trainer.py ddp 16-mixed
"""

import sys
import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanSquaredError


class Line(L.LightningModule):
    """A network of one hidden layer that learns a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
        self.error = MeanSquaredError()

    def training_step(self, batch, index):
        """The loss of one batch."""
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        """The metric of one batch."""
        x, y = batch
        self.error(self.net(x), y)
        self.log("error", self.error, on_epoch=True, sync_dist=True)

    def configure_optimizers(self):
        """Adam with a schedule."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


def main(strategy: str = "ddp", precision: str = "32-true") -> None:
    """Fit, validate, test from the best checkpoint."""
    L.seed_everything(1, verbose=False)
    inputs = torch.randn(256, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cuda",
            devices=2,
            strategy=strategy,
            precision=precision,
            max_epochs=3,
            default_root_dir=folder,
            sync_batchnorm=True,
            gradient_clip_val=None if strategy == "fsdp" else 5.0,  # Lightning clips no norms under FSDP
            log_every_n_steps=2,
            callbacks=[ModelCheckpoint(monitor="error")],
            enable_progress_bar=False,
            logger=False,
        )
        loader = DataLoader(data, batch_size=16, shuffle=True)
        trainer.fit(Line(), loader, DataLoader(data, batch_size=32))
        error = float(trainer.callback_metrics["error"])
    if trainer.is_global_zero:
        print(f"error {error:.4f} after {trainer.current_epoch} epochs on {trainer.world_size} GPUs")
    assert error < 10


if __name__ == "__main__":
    main(*sys.argv[1:])
