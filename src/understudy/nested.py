"""PyTorch's tensors in nested batches: lists, tuples, sets, mappings, dataclasses, packed sequences, modules."""

from __future__ import annotations

import copy as _copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence


def tensors_in(x: object) -> Iterator[torch.Tensor]:
    """Every tensor of a nested batch or a module, in order."""
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, PackedSequence):  # its batch sizes stay on the CPU
        yield from (part for part in (x.data, x.sorted_indices, x.unsorted_indices) if part is not None)
    elif isinstance(x, nn.Module):
        yield from x.parameters()
        yield from x.buffers()
    elif isinstance(x, Mapping):
        for value in x.values():
            yield from tensors_in(value)
    elif isinstance(x, list | tuple | set | frozenset):
        for value in x:
            yield from tensors_in(value)
    elif is_dataclass(x) and not isinstance(x, type):
        for field in fields(x):
            yield from tensors_in(getattr(x, field.name, None))


def map_tensors(
    function: Callable[[torch.Tensor], torch.Tensor],
    x: Any,
    modules: Callable[[nn.Module], nn.Module] | None = None,
    names: Callable[[Any], Any] | None = None,
) -> Any:
    """The nested batch `x` with `function` applied to its tensors; `x` itself where that changes nothing.

    A tensor that is there twice stays one tensor. Modules are left alone, unless `modules` says what to do with them,
    and so are lists and tuples of strings, unless `names` does.
    """
    seen: dict[int, torch.Tensor] = {}

    def once(tensor: torch.Tensor) -> torch.Tensor:
        result = seen.get(id(tensor))
        if result is None:
            result = seen[id(tensor)] = function(tensor)
        return result

    return _mapped_parts(once, x, modules, names)


def are_names(x: Any) -> bool:
    """Whether `x` is a list or tuple of strings, as `default_collate` makes of the strings of samples."""
    return isinstance(x, list | tuple) and bool(x) and all(isinstance(item, str | bytes) for item in x)


def _mapped_parts(function: Callable[[torch.Tensor], torch.Tensor], x: Any, modules: Any, names: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return function(x)
    if names is not None and are_names(x):
        return names(x)
    if isinstance(x, Mapping):
        values = {key: _mapped_parts(function, value, modules, names) for key, value in x.items()}
        return x if all(values[key] is x[key] for key in values) else _with_values(x, values)
    if isinstance(x, PackedSequence):  # its batch sizes stay on the CPU
        parts = (x.data, x.sorted_indices, x.unsorted_indices)
        moved: list[Any] = [None if part is None else function(part) for part in parts]
        return x if moved[0] is x.data else PackedSequence(moved[0], x.batch_sizes, moved[1], moved[2])
    if isinstance(x, list | tuple | set | frozenset):
        former = list(x)
        items = [_mapped_parts(function, value, modules, names) for value in former]
        if all(item is before for item, before in zip(items, former, strict=True)):
            return x
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    if isinstance(x, nn.Module):
        return x if modules is None else modules(x)
    if is_dataclass(x) and not isinstance(x, type):
        return _with_fields(function, x, modules, names)
    return x


def _with_values(x: Mapping[Any, object], values: dict[object, object]) -> Any:
    """A mapping of the class of `x`, with what else it carries (a defaultdict its factory), and other values."""
    if not isinstance(x, MutableMapping):
        return values
    changed = _copy.copy(x)
    changed.update(values)
    return changed


def _with_fields(function: Callable[[torch.Tensor], torch.Tensor], x: Any, modules: Any, names: Any) -> Any:
    """A dataclass with other values. It is copied, not made anew: `__init__` and `__post_init__` have run already."""
    changed = None
    for field in fields(x):
        old = getattr(x, field.name, None)  # a field without a default may have no value yet
        new = _mapped_parts(function, old, modules, names)
        if new is not old:
            changed = _copy.copy(x) if changed is None else changed
            object.__setattr__(changed, field.name, new)  # frozen ones too
    return x if changed is None else changed
