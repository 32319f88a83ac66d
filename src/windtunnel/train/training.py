"""The interface of the Trainer that callbacks, modules and the loop use."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from windtunnel.train.checkpoints import Checkpoints
from windtunnel.train.progress import Progress
from windtunnel.train.stop import StopRequest
from windtunnel.train.strategies import SingleDevice


class Training(Protocol):
    """A training in progress; `windtunnel.train.Trainer` implements it.

    `history` holds the means of each epoch, `stop_reason` why the training ends (None while it continues).
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    scheduler: object
    placement: SingleDevice
    checkpoints: Checkpoints | None
    callbacks: list[Any]
    progress_bar: Progress
    stop_request: StopRequest
    stop_reason: str | None
    history: list[dict[str, float]]
    max_epochs: int
    accumulate: int
    log_every: int
    gradient_clip_val: float

    @property
    def step(self) -> int:
        """The number of updates so far."""

    @property
    def epoch(self) -> int:
        """The number of passes over the data so far."""

    def stop(self, reason: str = ...) -> None:
        """End the training after the current step or epoch."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Send numbers that are on the host to the loggers."""

    def report_epoch(self, epoch: int, values: dict[str, float]) -> None:
        """Show the means over an epoch."""
