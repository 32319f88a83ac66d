"""accelerate on two GPUs, with a checkpoint every step; started again it goes on from the last one.

    CHECKPOINTS=run windtunnel run --gpus 2xA100 --nproc-per-node 2 examples/recovery/accelerate_training.py

`CHECKPOINTS` names the folder. At the end each rank prints a hash of its weights.
"""

import hashlib
import os
import shutil
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 4
FOLDER = Path(os.environ["CHECKPOINTS"])


class Done:
    """How many steps are done, which the checkpoint keeps as well."""

    def __init__(self):
        self.steps = 0

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def save(accelerator):
    """A checkpoint under another name first: whoever dies meanwhile leaves the one before."""
    draft = FOLDER / "draft"
    if accelerator.is_main_process:
        shutil.rmtree(draft, ignore_errors=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(draft)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        before = FOLDER / "before"
        shutil.rmtree(before, ignore_errors=True)
        if (FOLDER / "last").exists():
            (FOLDER / "last").rename(before)
        draft.rename(FOLDER / "last")
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    set_seed(1)
    accelerator = Accelerator()
    inputs = torch.randn(8 * STEPS, 8)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    net, optimizer, loader = accelerator.prepare(net, torch.optim.Adam(net.parameters(), lr=0.05), loader)
    done = Done()
    accelerator.register_for_checkpointing(done)
    found = next((folder for folder in (FOLDER / "last", FOLDER / "before") if folder.exists()), None)
    if found is not None:
        accelerator.load_state(found)
    for x, y in accelerator.skip_first_batches(loader, done.steps):
        accelerator.backward(nn.functional.mse_loss(net(x), y))
        optimizer.step()
        optimizer.zero_grad()
        done.steps += 1
        save(accelerator)
    weights = torch.cat([parameter.detach().cpu().reshape(-1) for parameter in net.parameters()])
    print(f"weights {hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]}\n", end="", flush=True)
    accelerator.end_training()
