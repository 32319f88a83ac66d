"""One process and one device: the base of all other strategies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from windtunnel import torch as wt


class SingleDevice:
    """The model and its batches are on the first GPU given, or on the CPU."""

    name = "single"
    rank = 0
    world_size = 1
    splits_batches = False  # whether a step sees only a part of the batch, as under DataParallel

    def __init__(self) -> None:
        self.gpus: list[torch.device] = []

    def setup(self, gpus: Sequence[torch.device]) -> None:
        """Set the devices; empty `gpus` means the CPU."""
        self.gpus = list(gpus[:1])

    @property
    def device(self) -> torch.device:
        """Where batches go and losses come from."""
        return self.gpus[0] if self.gpus else wt.cpu()

    def place(self, model: nn.Module) -> nn.Module:
        """Move `model` to where it trains, and return what to call instead of it."""
        return model.to(self.device)

    def adopt_parameters(self) -> None:
        """Adopt what has been frozen or unfrozen since `place`, for example by callbacks."""

    def adopt_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Give an optimizer the placed parameters. Raises UsageError if it cannot train them."""

    def without_sync(self, runner: nn.Module) -> AbstractContextManager[object]:
        """A block in which backward passes do not average gradients over processes."""
        return nullcontext()

    def before_forward(self) -> None:
        """What processes do together before each forward pass of training."""

    def after_evaluation(self) -> None:
        """Release what forward passes without backward passes have gathered, so that callbacks see what is trained."""

    def average_unmanaged(self, optimizer: torch.optim.Optimizer) -> None:
        """Average over processes the gradients of parameters outside the placed model, such as a loss's."""

    def equalize(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give every process the values of rank 0."""

    def follow(self, module: nn.Module) -> None:
        """Give every process rank 0's state of another module, and its buffers before each forward pass of training."""

    def clip_gradients(self, parameters: Sequence[torch.Tensor], largest: float) -> None:
        """Scale all gradients so that their total norm is at most `largest`."""
        nn.utils.clip_grad_norm_(parameters, largest)

    def full(self, tensor: torch.Tensor) -> torch.Tensor:
        """The whole tensor, of which this process may hold only a shard."""
        return tensor.detach()

    def shard(self, full: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The tensor `full` placed like `like`: the inverse of the method `full`."""
        return wt.to(full, like.device)

    def sum_over_ranks(self, values: dict[str, float]) -> dict[str, float]:
        return values

    def gather(self, value: object) -> list[Any]:
        """The `value` of every process, in the order of ranks, on every process."""
        return [value]

    def broadcast(self, value: object) -> Any:
        """The `value` of rank 0."""
        return value
