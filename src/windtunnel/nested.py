"""PyTorch's tensors in nested batches: lists, tuples, sets, mappings, dataclasses, packed sequences, modules.

Containers are taken apart and put together as PyTorch's own pytree does it, so that a class which a library has
registered there (`torch.utils._pytree.register_pytree_node`) is one here too. The pytree knows classes by their exact
type; this file adds what it takes for a leaf and a batch may well be made of.
"""

from __future__ import annotations

import copy as _copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree


class Children(NamedTuple):
    """What a container holds, one level deep, and the function that makes a container like it of other values."""

    values: list[Any]
    rebuild: Callable[[list[Any]], object]


def children_of(x: object) -> Children | None:
    """The parts of a container; None for whatever is none: tensors, modules, numbers, strings."""
    if is_dataclass(x) and not isinstance(x, type | Mapping):
        names = [field.name for field in fields(x) if hasattr(x, field.name)]  # one without a default may have no value
        return Children([getattr(x, name) for name in names], lambda values: _with_fields(x, names, values))
    node = pytree.SUPPORTED_NODES.get(type(x))
    if node is not None:
        values, context = node.flatten_fn(x)
        return Children(values, lambda values: node.unflatten_fn(values, context))
    if isinstance(x, Mapping):
        return Children(list(x.values()), lambda values: _with_values(x, values))
    if isinstance(x, PackedSequence):  # its batch sizes stay on the CPU
        held = [x.data, x.sorted_indices, x.unsorted_indices]
        return Children(held, lambda values: PackedSequence(values[0], x.batch_sizes, values[1], values[2]))
    if isinstance(x, list | tuple | set | frozenset):
        return Children(list(x), lambda values: type(x)(*values) if hasattr(x, "_fields") else type(x)(values))
    return None


def tensors_in(x: object) -> Iterator[torch.Tensor]:
    """Every tensor of a nested batch or a module, in order."""
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, nn.Module):
        yield from x.parameters()
        yield from x.buffers()
    elif (held := children_of(x)) is not None:
        for value in held.values:
            yield from tensors_in(value)


def map_tensors(
    function: Callable[[torch.Tensor], torch.Tensor],
    x: object,
    modules: Callable[[nn.Module], nn.Module] | None = None,
    names: Callable[[list[str] | tuple[str, ...]], object] | None = None,
) -> Any:
    """The nested batch `x` with `function` applied to its tensors; `x` itself where that changes nothing.

    A tensor that is there twice stays one tensor. Modules are left alone, unless `modules` says what to do with them,
    and so are lists and tuples of strings, unless `names` does.
    """
    seen: dict[int, torch.Tensor] = {}

    def mapped(x: object) -> object:
        if isinstance(x, torch.Tensor):
            if id(x) not in seen:
                seen[id(x)] = function(x)
            return seen[id(x)]
        if isinstance(x, nn.Module):
            return x if modules is None else modules(x)
        if names is not None and are_names(x):
            return names(x)
        parts = children_of(x)
        if parts is None:
            return x
        values = [mapped(value) for value in parts.values]
        same = all(value is former for value, former in zip(values, parts.values, strict=True))
        return x if same else parts.rebuild(values)

    return mapped(x)


def are_names(x: object) -> TypeGuard[list[str] | tuple[str, ...]]:
    """Whether `x` is a list or tuple of strings, as `default_collate` makes of the strings of samples."""
    return isinstance(x, list | tuple) and bool(x) and all(isinstance(item, str | bytes) for item in x)


def _with_values(x: Mapping[object, object], values: list[object]) -> object:
    """A mapping of the class of `x`, with what else it carries, and other values."""
    changes = dict(zip(x, values, strict=True))
    if not isinstance(x, MutableMapping):
        return changes
    changed = _copy.copy(x)
    changed.update(changes)
    return changed


def _with_fields(x: object, names: list[str], values: list[object]) -> object:
    """A dataclass with other values. It is copied, not made anew: `__init__` and `__post_init__` have run already."""
    changed = _copy.copy(x)
    for name, value in zip(names, values, strict=True):
        if value is not getattr(x, name):
            object.__setattr__(changed, name, value)  # frozen ones too
    return changed
