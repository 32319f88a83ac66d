"""Averages that stay on the GPU until somebody asks for them."""

import copy

import torch
from torch import nn


class WeightAverage:
    """A copy of a model whose weights follow it as an exponential moving average."""

    def __init__(self, model: nn.Module, decay: float = 0.99) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move every weight a little towards the model's."""
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), 1 - self.decay)


class RunningMean:
    """The mean of numbers that a device computes; the host reads it once, at the end."""

    def __init__(self) -> None:
        self.total: torch.Tensor | None = None
        self.count = 0

    def add(self, value: torch.Tensor) -> None:
        """Take up one number."""
        value = value.detach()
        self.total = value.clone() if self.total is None else self.total + value
        self.count += 1

    def read(self) -> float:
        """The mean so far; waits for the device."""
        if self.total is None:
            raise ValueError("no number was added")
        return self.total.item() / self.count
