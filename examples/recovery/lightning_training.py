"""Lightning on two GPUs, with a checkpoint every epoch, of one step; started again it goes on from the last one.

    CHECKPOINTS=run windtunnel run --gpus 2xA100 --nproc-per-node 2 examples/recovery/lightning_training.py

`CHECKPOINTS` names the folder. At the end each rank prints a hash of its weights. A checkpoint within an epoch would
not do: Lightning goes on from it with the epoch's first batches, unless the loader keeps its place (`state_dict`).
"""

import hashlib
import logging
import os
import warnings
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 4
FOLDER = Path(os.environ["CHECKPOINTS"])


class Model(L.LightningModule):
    """A small network that learns a sum."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    L.seed_everything(1, verbose=False)
    inputs = torch.randn(8, 8)
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4)
    trainer = L.Trainer(
        accelerator="cuda",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "2")),
        strategy="ddp",
        max_epochs=STEPS,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            ModelCheckpoint(FOLDER, filename="last", save_on_train_epoch_end=True, enable_version_counter=False)
        ],
    )
    last = FOLDER / "last.ckpt"
    model = Model()
    trainer.fit(model, data, ckpt_path=last if last.exists() else None)
    weights = torch.cat([parameter.detach().cpu().reshape(-1) for parameter in model.parameters()])
    print(f"weights {hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]}\n", end="", flush=True)
