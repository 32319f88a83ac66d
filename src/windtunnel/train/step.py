"""One training step: from a batch to a loss, from a loss to an update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.train.module import Module
from windtunnel.train.precision import Precision
from windtunnel.train.strategies import SingleDevice


class Result(NamedTuple):
    """The loss of a batch (a scalar with its graph), and what metrics may need."""

    loss: torch.Tensor
    outputs: object = None
    target: object = None
    extra: dict[str, torch.Tensor] | None = None


class ModuleStep(nn.Module):
    """Calls a Module's step through `forward`, so that DataParallel, DDP and FSDP see the call.

    With `split` (each replica gets a part of the batch) the values are multiplied by the part's number of samples,
    which is returned as well, so that the batch's mean can be computed after gathering.
    """

    def __init__(self, module: Module, split: bool) -> None:
        super().__init__()
        self.module = module
        self.split = split

    def forward(self, step: str, batch: object) -> object:
        """The values of a step by name; for a predict_step, its result."""
        result = getattr(self.module, step)(batch)
        if step == "predict_step":
            return result
        values = result if isinstance(result, dict) else {"loss": result}
        if "loss" not in values:
            raise UsageError(f"{step} returned a dict without 'loss': it holds {sorted(values)}.")
        if not self.split:
            return values
        from windtunnel.train.data import batch_size_of

        size = batch_size_of(batch)
        sums = {name: (value * size).reshape(1) for name, value in values.items()}
        return sums | {"samples": torch.full_like(sums["loss"], size, requires_grad=False)}


Forward = Callable[[object], Result]


def module_forward(runner: nn.Module, step: str, split: bool) -> Forward:
    """The forward function of a model with its own steps; `runner` is its placed ModuleStep."""

    def forward(batch: object) -> Result:
        values = dict(runner(step, batch))
        if split:
            samples = values.pop("samples").sum()
            values = {name: value.sum() / samples for name, value in values.items()}
        loss = values.pop("loss")
        # copied, as they may be views of what the update is about to change
        return Result(loss, extra={name: value.detach().clone() for name, value in values.items()} or None)

    return forward


def plain_forward(runner: nn.Module, loss: Callable[[object, object], torch.Tensor]) -> Forward:
    """The forward function of any other model: a batch's last entry is the target, the others are arguments."""

    def forward(batch: object) -> Result:
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
    """An update from one batch, or from a group of batches whose gradients are accumulated.

    The gradient is that of the mean over all samples of the group in all processes, however many each of them has.
    `loss` computes the loss; if it is a module, it is trained with the model.
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
        loss: Any = None,
    ) -> None:
        self.gives_extra = gives_extra  # whether results may hold values beside the loss
        self.forward, self.runner, self.loss = forward, runner, loss
        self.strategy, self.precision = strategy, precision
        self.scaler = precision.scaler(strategy.device)
        self._world_size = strategy.world_size
        self._total = self._expected = 0
        self.adopt(optimizer, clip)

    @property
    def loss_module(self) -> nn.Module | None:
        """The loss, if it is a module with parameters or buffers."""
        has_state = isinstance(self.loss, nn.Module) and next(wt.tensors_in(self.loss), None) is not None
        return self.loss if has_state else None

    def adopt(self, optimizer: torch.optim.Optimizer, clip: float) -> None:
        """Use this optimizer and clipping from now on; a callback may have replaced them."""
        self.optimizer, self.clip = optimizer, clip
        self._is_plain = self.precision.dtype is None and not clip and self._world_size == 1

    def __call__(self, batch: object, size: int, total: int) -> Result:
        self._drop_gradients()
        weight = size * self._world_size / total
        if not self._is_plain or weight != 1:
            result = self._backward(batch, weight)
            self._update()
            return result
        result = self.forward(batch)  # the same without the calls: 1 % of a small step
        result.loss.backward()
        self.optimizer.step()
        return result

    def _drop_gradients(self) -> None:
        for group in self.optimizer.param_groups:  # read anew each time: groups may be added while it trains
            for parameter in group["params"]:
                parameter.grad = None

    def accumulate(self, batch: object, size: int, total: int, expected: int | None, synchronize: bool) -> Result:
        """Add a batch's gradient to its group's. Without `synchronize`, gradients are not yet averaged over processes.

        `expected`, given with the first batch of a group, is the probable number of samples in the group. If the real
        number differs, the gradients are rescaled at the end, so a batch need not wait for the following ones; in fp16,
        `expected` determines whether they overflow.
        """
        if expected is not None:
            self._drop_gradients()
            self._expected, self._total = expected, 0
        self._total += total
        weight = size * self._world_size / self._expected
        if synchronize:
            return self._backward(batch, weight)
        with self.strategy.without_sync(self.runner):
            return self._backward(batch, weight)

    def finish_group(self) -> None:
        """Update from the accumulated gradients."""
        if self._total != self._expected:
            for parameter in self._parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self._expected / self._total)
        self._update()

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _backward(self, batch: object, weight: float) -> Result:
        self.strategy.before_forward()
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
        self.strategy.average_unmanaged(self.optimizer)
        if self.clip:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            self.strategy.clip_gradients(self._parameters(), self.clip)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
