"""Metrics as objects: those of torchmetrics, and any with `update`, `compute` and `reset`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.train.checkpoint import Encoder


def is_object(metric: object) -> bool:
    return all(hasattr(metric, method) for method in ("update", "compute", "reset"))


def combines_processes(item: object) -> bool:
    """Whether `compute` combines all processes by itself, as in torchmetrics."""
    return any(hasattr(part, "sync_context") for part in _parts(item))


def _parts(item: Any) -> list[Any]:
    """The torchmetrics objects in `item`: itself, those of a collection, or those inside a wrapper."""
    if hasattr(item, "compute_groups"):
        list(item.items())  # metrics of a group share one state, which this gives to each of them
    modules = item.modules() if isinstance(item, torch.nn.Module) else [item]
    return [module for module in modules if hasattr(module, "metric_state") and not hasattr(module, "compute_groups")]


def numbers(name: str, value: Any) -> dict[str, float]:
    """The result of `compute` as numbers; for a collection, by name."""
    if isinstance(value, Mapping):
        return {f"{name}_{key}": float(number) for key, number in value.items()}
    return {name: float(value)}


def state_of(item: Any) -> dict[str, object]:
    """The state that `item` has accumulated, as data for a checkpoint; {"unknown": ...} if it cannot be read."""
    parts = _parts(item)
    if parts:
        kept = [{"state": dict(part.metric_state), "count": getattr(part, "_update_count", None)} for part in parts]
        return {"parts": kept, "combines": combines_processes(item)}
    own = item.state_dict() if hasattr(item, "load_state_dict") else dict(vars(item))
    try:
        Encoder().encode(own, type(item).__name__)
    except UsageError as error:
        return {"unknown": str(error)}
    return {"own": own, "on_device": any(tensor.device.type != "cpu" for tensor in wt.tensors_in(own))}


def load_state(name: str, item: object, state: Mapping[str, Any], device: torch.device) -> None:
    """Restore what `state_of` returned. Raises UsageError if that could not be read."""
    if "unknown" in state:
        raise UsageError(
            f"the checkpoint was written in the middle of an epoch and lacks what the metric {name!r} had counted "
            f"({state['unknown']}) Give it state_dict and load_state_dict, or go on without it, or from an epoch's end."
        )
    if "parts" not in state:
        own = wt.to(state["own"], device) if state["on_device"] else state["own"]
        if hasattr(item, "load_state_dict"):
            item.load_state_dict(own)
        else:
            vars(item).update(own)
        return
    for part, kept in zip(_parts(item), state["parts"], strict=True):
        place = getattr(part, "device", device)
        for key, value in kept["state"].items():
            setattr(part, key, wt.to(value, place))
        if kept["count"] is not None:
            part._update_count = kept["count"]
