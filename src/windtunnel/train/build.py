"""What `fit` builds from its arguments: the forward function, the optimizer, the learning-rate schedule."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.train.checkpoint import fill
from windtunnel.train.data import Feed, Item, generator_states
from windtunnel.train.modes import eval_mode
from windtunnel.train.module import Module
from windtunnel.train.reproducible import random_state
from windtunnel.train.step import Forward, ModuleStep, module_forward, plain_forward
from windtunnel.train.strategies import SingleDevice

Loss = Callable[..., torch.Tensor]
OptimizerMaker = Callable[..., torch.optim.Optimizer]

_FUSED: tuple[object, ...] = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
_CAPTURABLE: tuple[object, ...] = (torch.optim.Adam, torch.optim.AdamW)


def own_steps(model: nn.Module, loss: Loss | None) -> bool:
    """Whether the model's own steps are used: those of a Module, unless `fit` was given a loss."""
    return isinstance(model, Module) and loss is None


def forward_of(runner: nn.Module, model: nn.Module, loss: Loss | None, step: str, split: bool) -> Forward:
    if own_steps(model, loss):
        return module_forward(runner, step, split)
    if loss is None:
        raise UsageError(
            f"{type(model).__name__} has no loss: give fit a loss= (a function of outputs and "
            "target), or write the model as a Module with a training_step."
        )
    return plain_forward(runner, loss)


def wrapped(model: nn.Module, loss: Loss | None, strategy: SingleDevice) -> nn.Module:
    """What the strategy places: the model, or the steps of a Module."""
    if isinstance(model, Module) and own_steps(model, loss):
        return ModuleStep(model, strategy.splits_batches)
    return model


class Begun(NamedTuple):
    """An epoch whose first batch has been read: its items, including that one, and the random states before it."""

    items: Iterator[Item]
    random: dict[str, object]
    generators: list[torch.Tensor]


def materialize(
    model: nn.Module,
    feed: Feed,
    own_steps: bool,
    saved: Mapping[str, Any] | None,
    generators: list[torch.Generator],
) -> Begun | None:
    """Give lazy layers their shapes before an optimizer or DDP needs the parameters.

    The shapes come from a checkpoint's state, or from a forward pass over a copy of the first batch in eval mode. That
    batch is still trained on, even if it cannot be read twice, as with a generator.
    """
    if not any(is_lazy(tensor) for tensor in wt.tensors_in(model)):
        return None
    if saved is not None:
        fill(model, saved, "the checkpoint")
        return None
    random, states = random_state(), generator_states(generators)
    items = feed.epoch(0)
    first = next(items, None)
    if first is None:
        raise UsageError("lazy layers take their shapes from the first batch, and the training data has none.")
    batch = wt.map_tensors(torch.clone, wt.to(first[0], next(iter(wt.tensors_in(model))).device))
    with torch.no_grad(), eval_mode(model):
        if own_steps:
            model.training_step(batch)  # type: ignore[operator]
        else:
            model(*([batch] if isinstance(batch, torch.Tensor) else list(batch)[:-1]))
    return Begun(chain([first], items), random, states)


def make_optimizer(
    optimizer: torch.optim.Optimizer | OptimizerMaker | None,
    model: nn.Module,
    loss: nn.Module | None,
    strategy: SingleDevice,
    graph: bool,
) -> tuple[torch.optim.Optimizer, object]:
    """(optimizer, scheduler or None) from `fit`'s arguments, or from the Module's configure_optimizers.

    A function such as `torch.optim.Adam` or `functools.partial(torch.optim.Adam, lr=0.01)` is called with the placed
    parameters, including those of the loss. Adam, AdamW and SGD are then created with `fused=True` if possible (and
    with `capturable=True` for `graph` on a GPU).
    """
    scheduler = None
    trainable = _trainable(model)
    if optimizer is None:
        if not isinstance(model, Module):
            raise UsageError(f"fit has no optimizer for {type(model).__name__}: give optimizer=torch.optim.Adam, say.")
        configured = model.configure_optimizers()
        optimizer, scheduler = configured if isinstance(configured, tuple) else (configured, None)
    if not isinstance(optimizer, torch.optim.Optimizer):
        of_loss = list(loss.parameters()) if loss is not None else []
        parameters = [*trainable, *of_loss]
        fast = {} if _has_sparse_gradients(model) else _fast_options(optimizer, parameters, strategy.device, graph)
        optimizer = optimizer(parameters, **fast)
    strategy.adopt_optimizer(optimizer)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(parameter) in held for parameter in trainable):
        raise UsageError(
            "the optimizer holds no parameter of the model: make it from model.parameters(), or give fit a function "
            "such as torch.optim.Adam."
        )
    return optimizer, scheduler


def _trainable(model: nn.Module) -> list[torch.Tensor]:
    scratch = getattr(model, "scratch_parameters", None)
    return [*model.parameters(), *(scratch() if callable(scratch) else ())]


def _has_sparse_gradients(model: nn.Module) -> bool:
    """Whether there are embeddings with sparse gradients, which fused optimizers refuse."""
    return any(getattr(module, "sparse", False) is True for module in model.modules())


def _fast_options(maker: object, parameters: list[torch.Tensor], device: torch.device, graph: bool) -> dict[str, bool]:
    """Options that speed up PyTorch's own optimizers, if the user has not set them and the parameters allow them."""
    chosen = maker.keywords if isinstance(maker, functools.partial) else {}
    cls = maker.func if isinstance(maker, functools.partial) else maker
    if device.type not in ("cpu", "cuda") or cls not in _FUSED or "foreach" in chosen:
        return {}
    if not all(parameter.is_floating_point() for parameter in parameters):
        return {}
    sharded = [type(parameter) for parameter in parameters if hasattr(parameter, "placements")]
    if sharded and (cls is torch.optim.SGD or len(sharded) < len(parameters)):
        return {}  # DTensors: SGD's fused kernel has no rule for them, and none takes them together with others
    captured = graph and device.type == "cuda" and cls in _CAPTURABLE
    options = {"fused": True} | ({"capturable": True} if captured else {})
    return {name: value for name, value in options.items() if name not in chosen}


def make_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer) -> object:
    """The learning-rate scheduler given, or the one made by the given function of the optimizer."""
    if scheduler is None or hasattr(scheduler, "state_dict"):
        return scheduler
    return scheduler(optimizer)
