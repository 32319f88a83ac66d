"""Train, be killed, go on: the same weights as if nothing had happened.

python examples/train_resume.py --folder run            start; kill it at any moment, and start it again
python examples/train_resume.py --folder run --die 25   dies after 25 steps, as a machine would
torchrun --nproc-per-node 2 examples/train_resume.py --folder run
"""

import argparse
import functools
import os
import signal

import torch
from torch import nn

from windtunnel.train import Callback, Checkpoints, Trainer, seed_all


class Report(Callback):
    """Says where a training begins: with the first step, or where an earlier one ended."""

    def on_fit_start(self, trainer):
        if trainer.placement.rank:
            return
        if trainer.step:
            print(
                f"resumed after step {trainer.step}, in epoch {trainer.epoch + 1} of {trainer.max_epochs}", flush=True
            )
        else:
            print("no checkpoint yet: starting with step 1", flush=True)


class Die(Callback):
    """Ends the process without any warning."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, trainer):
        if trainer.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default="run")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--die", type=int, metavar="STEP")
    args = parser.parse_args()

    seed_all(0)
    inputs = torch.randn(404, 13)
    target = inputs @ torch.randn(13, 1)
    model = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    trainer = Trainer(
        args.epochs,
        num_gpus=args.gpus,
        checkpoint=Checkpoints(args.folder, every_steps=5, asynchronous=args.die is None),
        callbacks=[Report(), *([Die(args.die)] if args.die else [])],
    )
    history = trainer.fit(
        model,
        (inputs, target),
        loss=nn.MSELoss(),
        optimizer=functools.partial(torch.optim.Adam, lr=0.01),
        batch_size=64,
        resume=True,
    )
    if trainer.placement.rank == 0:
        print(f"{len(history)} epochs, {trainer.step} steps, loss {history[-1]['train_loss']!r}")


if __name__ == "__main__":
    main()
