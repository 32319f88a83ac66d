"""One process and one device: what every other strategy changes a part of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from understudy import torch as us


class SingleDevice:
    """The model and its batches live on the first GPU given, or on the CPU."""

    name = "single"
    rank = 0
    world_size = 1
    splits_batches = False  # whether a step sees only a part of the batch, as under DataParallel

    def __init__(self) -> None:
        self.gpus: list[torch.device] = []

    def setup(self, gpus: Sequence[torch.device]) -> None:
        """Take the devices; `gpus` empty means the CPU."""
        self.gpus = list(gpus[:1])

    @property
    def device(self) -> torch.device:
        """Where batches go and losses come from."""
        return self.gpus[0] if self.gpus else us.cpu()

    def place(self, model: nn.Module) -> nn.Module:
        """What to call instead of `model`, which is moved to where it trains."""
        return model.to(self.device)

    def adopt_parameters(self) -> None:
        """Take note of what was frozen and unfrozen since `place`, as callbacks may do."""

    def adopt_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Let an optimizer hold the parameters as they are placed. Raises UsageError where it cannot train them."""

    def without_sync(self, runner: nn.Module) -> AbstractContextManager[object]:
        """A block whose backward passes leave the gradients of other processes alone."""
        return nullcontext()

    def before_forward(self) -> None:
        """What processes do together before each forward pass of training."""

    def after_evaluation(self) -> None:
        """Give back what forward passes without backward ones have gathered: callbacks see what is trained."""

    def average_unmanaged(self, optimizer: torch.optim.Optimizer) -> None:
        """Average the gradients of parameters that the placed model does not hold, such as a loss's, over processes."""

    def equalize(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give every process the values that rank 0 has."""

    def follow(self, module: nn.Module) -> None:
        """Give every process rank 0's state of a module beside the model, and its buffers before each forward pass."""

    def clip_gradients(self, parameters: Sequence[torch.Tensor], largest: float) -> None:
        """Scale all gradients so that their norm together is at most `largest`."""
        nn.utils.clip_grad_norm_(parameters, largest)

    def full(self, tensor: torch.Tensor) -> torch.Tensor:
        """The whole of a tensor of which this process may hold a shard."""
        return tensor.detach()

    def shard(self, full: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """`full` as `like` is placed: the inverse of `full`."""
        return us.to(full, like.device)

    def sum_over_ranks(self, values: dict[str, float]) -> dict[str, float]:
        return values

    def gather(self, value: object) -> list[Any]:
        """The `value` of every process, in the order of ranks, on every process."""
        return [value]

    def broadcast(self, value: object) -> Any:
        """The `value` of rank 0."""
        return value

    @contextmanager
    def rank_zero_first(self) -> Iterator[bool]:
        """True on the one process that writes files; the others leave the block after it."""
        yield True
