"""A checkpoint's training recipe, as data, and how a training that resumes from it differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, DataLoader

from windtunnel.errors import UsageError
from windtunnel.train.data import is_stream
from windtunnel.train.state import IMPLEMENTATION

# What a schedule counts as it goes on, beside what begins with an underscore.
COUNTED = {"last_epoch", "base_lrs", "best", "num_bad_epochs", "cooldown_counter"}


class Change(NamedTuple):
    """One difference: the `part` of the recipe, the setting, and its values then and now."""

    part: str
    what: str
    then: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.what} was {self.then} and is {self.now}"


def of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The class of an optimizer and the hyperparameters of its groups, before any schedule changes them."""
    groups = []
    for group in optimizer.param_groups:
        plain = {key: _plain(value) for key, value in group.items() if key not in ("params", *IMPLEMENTATION)}
        plain["lr"] = plain.pop("initial_lr", plain.get("lr"))  # a schedule keeps the one that was given there
        groups.append({key: value for key, value in plain.items() if value is not None})
    return {"class": _class_of(optimizer), "groups": groups}


def of_schedule(scheduler: Any) -> dict[str, Any]:
    """The class of a learning-rate scheduler (None if there is none) and its arguments."""
    if scheduler is None:
        return {"class": None}
    kept = scheduler.state_dict() if hasattr(scheduler, "state_dict") else {}
    state = {str(key): _plain(value) for key, value in kept.items()}
    made_with = {key: value for key, value in state.items() if key not in COUNTED and not key.startswith("_")}
    return {"class": _class_of(scheduler)} | {key: value for key, value in made_with.items() if value is not None}


def of_training(precision: str, gradient_clip_val: float, accumulate: int, loss: object) -> dict[str, Any]:
    """What else determines the updates: the loss, by its class or its function's name if it has one."""
    found = {"precision": precision, "gradient_clip_val": gradient_clip_val, "accumulate": accumulate}
    if isinstance(loss, FunctionType):
        found["loss"] = f"{loss.__module__}.{loss.__qualname__}"
    elif loss is not None:
        found["loss"] = _class_of(loss)
    return found


def of_data(source: Any) -> dict[str, Any]:
    """What determines the order of a loader's rows and their batches."""
    if not isinstance(source, DataLoader):
        kept = ("batch_size", "shuffle", "drop_last")
        found = {"class": _class_of(source)} | {key: _plain(getattr(source, key, None)) for key in kept}
        found["length"] = len(source) if isinstance(source, Sized) and not is_stream(source) else None
        return {key: value for key, value in found.items() if value is not None}
    own_batches = source.batch_sampler is not None and type(source.batch_sampler) is not BatchSampler
    order = source.batch_sampler if own_batches else source.sampler
    found = {"class": _class_of(source), "order": _class_of(order), "drop_last": source.drop_last}
    found["batch_size"] = _plain(getattr(order, "batch_size", None) if own_batches else source.batch_size)
    found["rows"] = len(source.dataset) if isinstance(source.dataset, Sized) else None
    return {key: value for key, value in found.items() if value is not None}


def _class_of(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.")


def _plain(value: Any) -> Any:
    """Numbers, strings and sequences of them; None for values that cannot be compared or are on a GPU."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.device.type == "cpu" and value.numel() == 1 else None
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return None if None in items else items
    return value if isinstance(value, bool | int | float | str) else None


def changes(then: Mapping[str, Any], now: Mapping[str, Any], processes_then: int, processes_now: int) -> list[Change]:
    """The differences between two recipes. Settings in only one, such as a newer PyTorch's option, are left out."""
    found = []
    other_class = then["optimizer"]["class"] != now["optimizer"]["class"]
    if other_class:
        found.append(Change("optimizer", "the optimizer", then["optimizer"]["class"], now["optimizer"]["class"]))
    groups = list(zip(then["optimizer"]["groups"], now["optimizer"]["groups"], strict=False))
    for number, (former, present) in enumerate(groups):
        of_group = f" of parameter group {number}" if len(groups) > 1 else ""
        for key, pair in _differing(former, present):
            if key == "lr" or not other_class:  # the others mean other things there
                found.append(Change("hyperparameters", key + of_group, *pair))
    for key, pair in _differing(then["schedule"], now["schedule"]):
        found.append(Change("schedule", "the schedule" if key == "class" else f"{key} of the schedule", *pair))
    if then["data"].get("class") != now["data"].get("class"):
        found.append(Change("data", "the data", then["data"].get("class"), now["data"].get("class")))
    for key, (former, present) in _differing(then["data"], now["data"]):
        # Among another number of processes a batch may have as many rows in each, or as many in all.
        if key == "batch_size" and former * processes_then == present * processes_now:
            continue
        if key != "class":
            found.append(Change("data", _WORDS.get(key, key), former, present))
    for key, (former, present) in _differing(then.get("training", {}), now.get("training", {})):
        # Among another number of processes an update may be of as many batches.
        if key != "accumulate" or former * processes_then != present * processes_now:
            found.append(Change("training", _WORDS.get(key, key), former, present))
    return found


_WORDS = {
    "loss": "the loss",
    "order": "the order of the data",
    "rows": "the number of rows",
    "length": "the length of the data",
}


def _differing(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for key, value in then.items():
        if key in now and now[key] != value:
            yield key, (value, now[key])


def require_no_changes(found: list[Change]) -> None:
    """Raise UsageError, naming the changes, if there are any."""
    if found:
        raise UsageError(
            f"the checkpoint was trained with different settings: {'; '.join(map(str, found))}. Give fit what "
            "it was trained with, or allow_changes=True to go on with what is given now."
        )
