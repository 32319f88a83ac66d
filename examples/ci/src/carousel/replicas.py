"""Copies of one model on several GPUs."""

from collections.abc import Sequence

import torch
from torch import nn


@torch.no_grad()
def average_(models: Sequence[nn.Module]) -> None:
    """Give models that live on different GPUs the mean of their weights."""
    for weights in zip(*(model.parameters() for model in models), strict=True):
        first = weights[0]
        mean = torch.stack([weight.to(first.device) for weight in weights]).mean(0)
        for weight in weights:
            weight.copy_(mean)
