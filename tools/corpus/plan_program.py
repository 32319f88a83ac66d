"""A program of `training` as a script that `windtunnel plan` rehearses: one model, one precision, any batch.

python -m tools.corpus.plan_program "bert-large SQuAD" fp16 --batch-size 16
"""

from __future__ import annotations

import argparse

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tools.corpus.training import PROGRAMS


def main() -> None:
    """Take steps without end; those of optimizers that are not PyTorch's are told by one that does nothing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=sorted(PROGRAMS))
    parser.add_argument("precision", choices=("fp16", "bf16", "tf32", "fp32"))
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.precision != "fp32"
    told: list[object] = []
    register_optimizer_step_post_hook(lambda optimizer, *_: told.append(optimizer))
    with torch.device("cuda"):
        step, _ = PROGRAMS[options.model](options.batch_size, options.precision)
        nothing = torch.zeros(1, requires_grad=True)
        nothing.grad = torch.zeros(1)
        end = torch.optim.SGD([nothing], lr=0.0)
        while True:
            told.clear()
            step()
            if not told:
                end.step()


if __name__ == "__main__":
    main()
