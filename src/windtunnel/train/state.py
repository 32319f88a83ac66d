"""A training's whole state as data and back, so that it can move to other devices, or another number of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.train.checkpoint import fill
from windtunnel.train.strategies import SingleDevice

# How a step is carried out, not what it computes: a checkpoint of a GPU goes on without a GPU.
IMPLEMENTATION = ("foreach", "fused", "capturable")
LOOSE = "parameter "  # begins the name of what is no parameter of a module


def model_state(model: nn.Module, strategy: SingleDevice) -> dict[str, object]:
    """A dict from names to whole tensors; shared parameters stay shared. Every process takes part."""
    whole: dict[int, torch.Tensor] = {}
    state: dict[str, object] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, torch.Tensor):
            if id(value) not in whole:
                whole[id(value)] = strategy.full(value)
            value = whole[id(value)]
        state[name] = value
    return state


def load_model_state(
    model: nn.Module, state: dict[str, Any], strategy: SingleDevice, origin: str = "the checkpoint"
) -> None:
    present = model.state_dict(keep_vars=True)
    placed = {
        name: strategy.shard(value, present[name])
        if isinstance(value, torch.Tensor) and isinstance(present.get(name), torch.Tensor)
        else value
        for name, value in state.items()
    }
    fill(model, placed, origin)


def _parameter_names(model: nn.Module, loss: nn.Module | None, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """The names of the parameters of each group; parameters of neither model nor loss are numbered."""
    known = {id(p): f"loss {name}" for name, p in loss.named_parameters()} if loss is not None else {}
    known |= {id(parameter): name for name, parameter in model.named_parameters()}
    groups = [group["params"] for group in optimizer.param_groups]
    return [[known.get(id(p), f"{LOOSE}{i}.{j}") for j, p in enumerate(group)] for i, group in enumerate(groups)]


def loose_parameters(
    model: nn.Module, loss: nn.Module | None, optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """Tensors that the optimizer trains but that are parameters of neither model nor loss, such as plain attributes."""
    names = _parameter_names(model, loss, optimizer)
    pairs = [(name, p) for held, group in zip(names, optimizer.param_groups, strict=True)
             for name, p in zip(held, group["params"], strict=True)]  # fmt: skip
    return {name: parameter for name, parameter in pairs if name.startswith(LOOSE)}


def load_loose_parameters(present: dict[str, torch.Tensor], saved: dict[str, torch.Tensor]) -> None:
    if present.keys() != saved.keys():
        raise UsageError(
            "the checkpoint is of a different optimizer, which trains tensors other than the model's parameters. "
            "Give fit the optimizer it was trained with, or load only the model with load_parameters."
        )
    with torch.no_grad():
        for name, tensor in present.items():
            tensor.copy_(saved[name])


def optimizer_state(
    model: nn.Module, loss: nn.Module | None, optimizer: torch.optim.Optimizer, strategy: SingleDevice
) -> dict[str, object]:
    """The optimizer's state by parameter name, with whole tensors. Every process takes part."""
    names = _parameter_names(model, loss, optimizer)
    flat = [name for group in names for name in group]
    state = optimizer.state_dict()

    def whole(value: object) -> object:
        return strategy.full(value) if isinstance(value, torch.Tensor) else value

    values = {flat[index]: {key: whole(v) for key, v in item.items()} for index, item in state["state"].items()}
    groups = [
        {key: value for key, value in group.items() if key not in (*IMPLEMENTATION, "params")}
        for group in state["param_groups"]
    ]
    return {"names": names, "groups": groups, "state": values}


def load_optimizer_state(
    model: nn.Module,
    loss: nn.Module | None,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    strategy: SingleDevice,
    keep_hyperparameters: bool = False,
) -> None:
    """Load `optimizer_state` into `optimizer`; with `keep_hyperparameters` it keeps its own hyperparameters."""
    names = _parameter_names(model, loss, optimizer)
    if names != state["names"]:
        raise UsageError(
            "the checkpoint is of a different optimizer: its parameter groups contain other parameters. "
            "Give fit the optimizer it was trained with, or load only the model with load_parameters."
        )
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    flat = [name for group in names for name in group]
    values = {}
    for index, (name, parameter) in enumerate(zip(flat, parameters, strict=True)):
        entries = state["state"].get(name)
        if entries is not None:
            values[index] = {key: _like(value, parameter, strategy) for key, value in entries.items()}
    present = optimizer.state_dict()["param_groups"]
    groups = present
    if not keep_hyperparameters:
        groups = [now | _placed(saved, now) for now, saved in zip(present, state["groups"], strict=True)]
    optimizer.load_state_dict({"state": values, "param_groups": groups})


def _like(value: object, parameter: torch.Tensor, strategy: SingleDevice) -> object:
    """Place state with a parameter's shape like the parameter; PyTorch places the rest (step counts) itself."""
    if isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.dim():
        return strategy.shard(value, parameter)
    return value


def _placed(saved: dict[str, object], now: dict[str, Any]) -> dict[str, object]:
    """A group's saved hyperparameters; tensors among them are put on their present devices."""
    return {
        key: wt.to(value, now[key].device) if isinstance(now.get(key), torch.Tensor) else value
        for key, value in saved.items()
    }


def scheduler_state(scheduler: LRScheduler) -> dict[str, object]:
    """A schedule's state; of the schedules that it holds their own, without the optimizer that they refer to."""
    return {
        name: scheduler_state(value) if isinstance(value, LRScheduler) else value
        for name, value in scheduler.state_dict().items()
    }


def load_scheduler_state(scheduler: LRScheduler, state: object) -> None:
    if not isinstance(state, dict):
        raise UsageError("the checkpoint is of a different schedule, which holds no other one.")
    held = {name: part for name, part in scheduler.state_dict().items() if isinstance(part, LRScheduler)}
    for name, part in held.items():
        load_scheduler_state(part, state.get(name))
    scheduler.load_state_dict(state | held)
