"""Results' shapes, remembered by the arguments, so that no meta kernel runs twice for the same ones.

Only what can be made again without a doubt is kept: an operator that writes its first argument and returns it, or one
that makes new dense tensors, each with memory of its own. What an operator says of wrong arguments is never kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from understudy.seam.torch.operators.plan import Plan
from understudy.seam.torch.tags import HOST_TAG, is_physically_meta, storage_of

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
META = torch.device("meta")
STRIDED = torch.strided
PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.memory_format, torch.layout})
"""Classes of arguments that are compared by value; 1, 1.0 and True are told apart by their class."""
UNKNOWN: Any = object()
BY_VALUES = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
default_dtype: Callable[[], torch.dtype] = torch.get_default_dtype
new_strided: Any = torch.ops.aten.empty_strided.default
Dense = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


class Shapes:
    """What an operator returns: its first argument, or new tensors of these sizes, strides and dtypes."""

    __slots__ = ("alone", "made")

    def __init__(self, made: tuple[Dense, ...], alone: bool) -> None:
        self.made = made
        self.alone = alone

    def new(self, args: tuple[Any, ...]) -> Any:
        """The results of one more call."""
        if not self.made:
            return args[0]
        found = [new_strided(size, stride, dtype=dtype, device=META) for size, stride, dtype in self.made]
        return found[0] if self.alone else tuple(found)


def shape_follows(plan: Plan, func: Any) -> bool:
    """Whether an operator's results may follow from the shapes, dtypes and numbers of its arguments."""
    if not plan.builtin or plan.view or plan.random or plan.resizes or plan.factory or plan.composite:
        return False
    if plan.mutated_keywords or not BY_VALUES.isdisjoint(func.tags):
        return False
    return plan.mutated == (() if plan.fresh else (0,))


def signature_of(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """All of the arguments that shapes can depend on; None where one of them is not plain, or has values."""
    key: list[Any] = [default_dtype()]
    for value in args:
        kind = value.__class__
        if kind is Tensor or kind is Parameter:
            if value.layout is not STRIDED or not is_physically_meta(value) or value.is_nested:
                return None
            key += (value.shape, value.stride(), value.dtype)
        elif kind in PLAIN:
            key += (kind, value)
        elif kind is list or kind is tuple:
            inner = signature_of(tuple(value))
            if inner is None:
                return None
            key.append(inner)
        else:
            return None
    return tuple(key)


def shapes_of(plan: Plan, args: tuple[Any, ...], out: Any) -> Shapes | None:
    """What to keep of an operator's results; None where they cannot be made again without its kernel."""
    if not plan.fresh:
        return Shapes((), True) if out is args[0] else None
    found = out if isinstance(out, tuple) else (out,)
    if not found or not all(map(_is_new, found)):
        return None
    if len({storage_of(tensor)._cdata for tensor in found}) < len(found):
        return None
    made = tuple((tuple(tensor.shape), tensor.stride(), tensor.dtype) for tensor in found)
    return Shapes(made, not isinstance(out, tuple))


def _is_new(tensor: Any) -> bool:
    """Whether a result is a dense tensor in memory of its own, and of just the size that it needs."""
    if tensor.__class__ is not Tensor or tensor.layout is not STRIDED or tensor.is_nested:
        return False
    if not is_physically_meta(tensor) or tensor.storage_offset() or tensor.is_conj() or tensor.is_neg():
        return False
    storage = storage_of(tensor)
    fresh = new_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
    return storage._us is HOST_TAG and storage.nbytes() == storage_of(fresh).nbytes()
