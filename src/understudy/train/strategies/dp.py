"""One process, several GPUs: PyTorch's DataParallel splits each batch along its first dimension."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from understudy.train.strategies.single import SingleDevice


class DataParallel(SingleDevice):
    """A batch of 128 on 2 GPUs is 64 + 64, on 3 GPUs 43 + 43 + 42; fewer samples than GPUs leave some idle.

    Outputs are gathered on the first GPU, where the loss is taken, so that the gradient is that of the whole batch.
    """

    name = "dp"

    def setup(self, gpus: Sequence[torch.device]) -> None:
        self.gpus = list(gpus)
        self.splits_batches = len(self.gpus) > 1

    def place(self, model: nn.Module) -> nn.Module:
        super().place(model)
        if len(self.gpus) < 2:
            return model
        wrap: type[nn.Module] = nn.DataParallel
        return wrap(model, device_ids=self.gpus)
