"""The types of an operator's call, as it comes from C++ and as every handler is given it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload as OpOverload

Arguments = tuple[Any, ...]
"""Positional arguments in the order of the operator's schema, by which C++ has checked their types."""
Keywords = dict[str, Any]
"""What the schema takes by keyword alone, by its name there; checked as well."""
Result = Any
"""What an operator returns; its schema says which types."""
Types = Sequence[type[torch.Tensor]]
"""The classes of its tensors that are not PyTorch's own."""
Cast = Callable[[object, torch.dtype], object]
"""Casts a value, or those in a list, as a rule of autocast wants it."""
Kernel = Callable[..., object]
"""What computes an operator's values: the operator itself, or a function in its place."""


def overload_of(name: str) -> OpOverload:
    """The operator of a name: `aten::add.Tensor`, `add.Tensor`, `bitsandbytes::gemm_4bit`."""
    namespace, _, full = name.rpartition("::")
    packet, _, overload = full.partition(".")
    found: OpOverload = getattr(getattr(getattr(torch.ops, namespace or "aten"), packet), overload or "default")
    return found


def tensors_in(values: Iterable[object]) -> list[torch.Tensor]:
    """The tensors in arguments or results, in order."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found
