"""What `fit` puts together from its arguments: the forward, the optimizer, the learning-rate schedule."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from understudy import torch as us
from understudy.errors import UsageError
from understudy.train.module import Module
from understudy.train.step import Forward, ModuleStep, module_forward, plain_forward
from understudy.train.strategies import SingleDevice

Loss = Callable[[Any, Any], torch.Tensor]
OptimizerMaker = Callable[[Iterable[Any]], torch.optim.Optimizer]

_FUSED: tuple[Any, ...] = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
_CAPTURABLE: tuple[Any, ...] = (torch.optim.Adam, torch.optim.AdamW)


def own_steps(model: nn.Module, loss: Loss | None) -> bool:
    """Whether the model's own steps are used: those of a Module, unless `fit` was given a loss."""
    return isinstance(model, Module) and loss is None


def forward_of(runner: nn.Module, model: nn.Module, loss: Loss | None, step: str, split: bool) -> Forward:
    if own_steps(model, loss):
        return module_forward(runner, step, split)
    if loss is None:
        raise UsageError(
            f"{type(model).__name__} does not say what its loss is: give fit a loss= (a function of outputs and "
            "target), or write the model as a Module with a training_step."
        )
    return plain_forward(runner, loss)


def wrapped(model: nn.Module, loss: Loss | None, strategy: SingleDevice) -> nn.Module:
    """What the strategy places: the model, or the steps of a Module."""
    if isinstance(model, Module) and own_steps(model, loss):
        return ModuleStep(model, strategy.splits_batches)
    return model


def materialize(model: nn.Module, first_batch: Callable[[], Any]) -> None:
    """Give lazy layers their shapes by one forward pass, before an optimizer or DDP wants the parameters."""
    if not any(is_lazy(parameter) for parameter in model.parameters()):
        return
    batch = first_batch()
    inputs = [batch] if isinstance(batch, torch.Tensor) else list(batch)[:-1]
    with torch.no_grad():
        model(*us.to(inputs, us.device_of(model)))


def make_optimizer(
    optimizer: torch.optim.Optimizer | OptimizerMaker | None, model: nn.Module, device: torch.device, graph: bool
) -> tuple[torch.optim.Optimizer, Any]:
    """(optimizer, scheduler or None) from what fit was given, or from the Module's configure_optimizers.

    A function such as `torch.optim.Adam` or `functools.partial(torch.optim.Adam, lr=0.01)` is called with the
    placed parameters; Adam, AdamW and SGD are then made fused (and on a GPU capturable, for CUDA graphs).
    """
    scheduler = None
    if optimizer is None:
        if not isinstance(model, Module):
            raise UsageError(f"fit has no optimizer for {type(model).__name__}: give optimizer=torch.optim.Adam, say.")
        configured = model.configure_optimizers()
        optimizer, scheduler = configured if isinstance(configured, tuple) else (configured, None)
    if not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer(_trainable(model), **_fast_options(optimizer, device, graph))
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(parameter) in held for parameter in _trainable(model)):
        raise UsageError(
            "the optimizer holds no parameter of the model: make it from model.parameters(), or give fit a function "
            "such as torch.optim.Adam (strategy 'fsdp' needs that, as it replaces the parameters)."
        )
    return optimizer, scheduler


def _trainable(model: nn.Module) -> list[torch.Tensor]:
    scratch = getattr(model, "scratch_parameters", None)
    return [*model.parameters(), *(scratch() if callable(scratch) else ())]


def _fast_options(maker: Any, device: torch.device, graph: bool) -> dict[str, bool]:
    """Options for speed of PyTorch's own optimizers, where the user has not chosen."""
    chosen = maker.keywords if isinstance(maker, functools.partial) else {}
    cls = maker.func if isinstance(maker, functools.partial) else maker
    if device.type not in ("cpu", "cuda") or cls not in _FUSED or "foreach" in chosen:
        return {}
    captured = graph and device.type == "cuda" and cls in _CAPTURABLE
    options = {"fused": True} | ({"capturable": True} if captured else {})
    return {name: value for name, value in options.items() if name not in chosen}


def make_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer) -> Any:
    """A learning-rate scheduler as given, or made by the function of the optimizer that was given."""
    if scheduler is None or hasattr(scheduler, "state_dict"):
        return scheduler
    return scheduler(optimizer)
