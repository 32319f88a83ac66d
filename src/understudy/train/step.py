"""One training step: from a batch to a loss, from a loss to an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from understudy.errors import UsageError
from understudy.train.module import Module
from understudy.train.precision import Precision
from understudy.train.strategies import SingleDevice


class Result(NamedTuple):
    """The loss of a batch (a scalar with its graph), and what metrics may want."""

    loss: torch.Tensor
    outputs: Any = None
    target: Any = None
    extra: dict[str, torch.Tensor] | None = None


class ModuleStep(nn.Module):
    """Calls a step of a Module through `forward`, so that DataParallel, DDP and FSDP see it.

    With `split`, where each replica gets a part of the batch, the values are multiplied by the part's samples, and
    the samples are counted, so that the mean over the batch can be taken after gathering.
    """

    def __init__(self, module: Module, split: bool) -> None:
        super().__init__()
        self.module = module
        self.split = split

    def forward(self, step: str, batch: Any) -> dict[str, torch.Tensor]:
        result = getattr(self.module, step)(batch)
        values = result if isinstance(result, dict) else {"loss": result}
        if "loss" not in values:
            raise UsageError(f"{step} returned a dict without 'loss': it holds {sorted(values)}.")
        if not self.split:
            return values
        from understudy.train.data import batch_size_of

        size = batch_size_of(batch)
        sums = {name: (value * size).reshape(1) for name, value in values.items()}
        return sums | {"samples": torch.full_like(sums["loss"], size, requires_grad=False)}


Forward = Callable[[Any], Result]


def module_forward(runner: nn.Module, step: str, split: bool) -> Forward:
    """The forward of a model with steps of its own; `runner` is its placed ModuleStep."""

    def forward(batch: Any) -> Result:
        values = dict(runner(step, batch))
        if split:
            samples = values.pop("samples").sum()
            values = {name: value.sum() / samples for name, value in values.items()}
        loss = values.pop("loss")
        return Result(loss, extra={name: value.detach() for name, value in values.items()} or None)

    return forward


def plain_forward(runner: nn.Module, loss: Callable[[Any, Any], torch.Tensor]) -> Forward:
    """The forward of any model: the last entry of a batch is the target, the others are the model's arguments."""

    def forward(batch: Any) -> Result:
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            raise UsageError(
                f"a batch is (inputs..., target), and this one is a {type(batch).__name__}: let the loader give that, "
                "override prepare_batch, or write a Module with a training_step of its own."
            )
        *inputs, target = batch
        outputs = runner(*inputs)
        return Result(loss(outputs, target), outputs, target)

    return forward


class Step:
    """An update from one batch, or from a group whose gradients are accumulated.

    The gradient is that of the mean over all samples of the group in all processes, whatever their numbers in each.
    """

    def __init__(
        self,
        forward: Forward,
        runner: nn.Module,
        optimizer: torch.optim.Optimizer,
        strategy: SingleDevice,
        precision: Precision,
        clip: float,
        gives_extra: bool = False,
    ) -> None:
        self.gives_extra = gives_extra  # whether results may hold values beside the loss
        self.forward, self.runner, self.optimizer = forward, runner, optimizer
        self.strategy, self.precision, self.clip = strategy, precision, clip
        self.scaler = precision.scaler(strategy.device)
        self._world_size = strategy.world_size
        self._is_plain = precision.dtype is None and not clip
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def __call__(self, batch: Any, size: int, total: int) -> Result:
        for parameter in self.parameters:
            parameter.grad = None
        weight = size * self._world_size / total
        if not self._is_plain or weight != 1:
            result = self._backward(batch, weight)
            self._update()
            return result
        result = self.forward(batch)  # the same without the calls: 1 % of a small step
        result.loss.backward()
        self.optimizer.step()
        return result

    def accumulate(self, group: Sequence[tuple[Any, int, int]]) -> list[Result]:
        """One update from several batches."""
        for parameter in self.parameters:
            parameter.grad = None
        total = sum(item[2] for item in group)
        results = []
        with self.strategy.without_sync(self.runner):
            for batch, size, _ in group[:-1]:
                results.append(self._backward(batch, size * self.strategy.world_size / total))
        batch, size, _ = group[-1]
        results.append(self._backward(batch, size * self.strategy.world_size / total))
        self._update()
        return results

    def _backward(self, batch: Any, weight: float) -> Result:
        if self.precision.dtype is None:
            result = self.forward(batch)
        else:
            with self.precision.autocast(self.strategy.device):
                result = self.forward(batch)
        loss = result.loss if weight == 1 else result.loss * weight
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        loss.backward()
        return result

    def _update(self) -> None:
        if self.clip:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.clip)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
