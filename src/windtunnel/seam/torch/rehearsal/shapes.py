"""Results' shapes, remembered by the arguments, so that no meta kernel runs twice for the same ones.

A meta kernel sees no values, so what it gives follows from the arguments' sizes, strides and dtypes, from the numbers
among them, and from the default dtype. Only results that can be made again without a doubt are kept: an operator that
writes its first argument and returns it, or nothing, or one that makes new dense tensors, each with memory of its own.
What an operator says of wrong arguments is never kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import torch

from windtunnel.seam.torch.plans.plan import Plan
from windtunnel.seam.torch.tags import HOST_TAG, is_physically_meta, storage_of

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
META = torch.device("meta")
STRIDED = torch.strided
PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.memory_format, torch.layout})
"""Classes of arguments that are compared by value; 1, 1.0 and True are told apart by their class."""
MOST = 1024
"""Of how many calls of one operator the results are remembered: a number that changes with every step, such as a
learning rate, makes new ones without end."""
BY_VALUES = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
SHAPED_BY_MEMORY = ("aten::as_strided",)
"""Operators that look at the size of an argument's memory, which its strides do not tell."""
default_dtype: Callable[[], torch.dtype] = torch.get_default_dtype
new_strided: Callable[..., Tensor] = torch.ops.aten.empty_strided.default
Dense = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Size, strides and dtype of a tensor."""


class Shapes:
    """What an operator returns: `made`, in a tuple, in a list, or `alone`; or its `first` argument."""

    __slots__ = ("form", "made")

    def __init__(self, form: Callable[[list[Tensor | None]], object] | None, made: tuple[Dense | None, ...]) -> None:
        self.form = form
        self.made = made

    def new(self, args: tuple[object, ...]) -> object:
        """The results of one more call."""
        if self.form is None:
            return args[0]
        return self.form(
            [one and new_strided(one[0], one[1], dtype=one[2], device=META) for one in self.made]  # one is no tensor
        )


class ShapeMemory:
    """The results of one operator, by its arguments; `numbers` says whether those decide what comes out."""

    __slots__ = ("known", "numbers")

    def __init__(self, plan: Plan) -> None:
        self.known: dict[Hashable, Shapes] = {}
        # The scalars of multi-tensor operators change with every step of an optimizer, and decide no shape.
        self.numbers = not plan.name.startswith("aten::_foreach_")

    def key(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Hashable:
        """All of the arguments that shapes can depend on; None where one of them is not plain, or has values."""
        key: list[object] = [default_dtype()]
        if self._describe(key, args) and (not kwargs or self._describe(key, kwargs.items())):
            return tuple(key)
        return None

    def _describe(self, key: list[object], values: Iterable[object]) -> bool:
        for value in values:
            kind = value.__class__
            if kind is Tensor or kind is Parameter:
                tensor: Tensor = value  # type: ignore[assignment]
                if tensor.layout is not STRIDED or not is_physically_meta(tensor) or tensor.is_nested:
                    return False
                key += (tensor.shape, tensor.stride(), tensor.dtype)
            elif kind is float and not self.numbers:
                key.append(kind)
            elif kind in PLAIN:
                key += (kind, value)
            elif kind is list or kind is tuple:
                inner: list[object] = []
                if not self._describe(inner, value):  # type: ignore[arg-type]
                    return False
                key.append(tuple(inner))
            else:
                return False
        return True

    def keep(self, key: Hashable, plan: Plan, args: tuple[object, ...], out: object) -> bool:
        """Remember what a call has given; whether that could be made again."""
        shapes = _shapes_of(plan, args, out)
        if shapes is None:
            return False
        if len(self.known) >= MOST:
            self.known.clear()
        self.known[key] = shapes
        return True


def alone(made: list[Tensor | None]) -> object:
    """The one tensor that was made."""
    return made[0]


def nothing(made: list[Tensor | None]) -> object:
    """What an operator returns that only writes."""
    return None


def memory_for(plan: Plan) -> ShapeMemory | None:
    """Where an operator's results are remembered; None where they may not follow from its arguments."""
    if not plan.builtin or plan.view or plan.random or plan.resizes or plan.factory or plan.composite:
        return None
    if plan.mutated_keywords or plan.name.startswith(SHAPED_BY_MEMORY) or not BY_VALUES.isdisjoint(plan.func.tags):
        return None
    return ShapeMemory(plan) if plan.mutated == (() if plan.fresh else (0,)) else None


def _shapes_of(plan: Plan, args: tuple[object, ...], out: object) -> Shapes | None:
    """What to keep of an operator's results; None where they cannot be made again without its kernel."""
    if not plan.fresh:
        return Shapes(nothing, ()) if out is None else Shapes(None, ()) if out is args[0] else None
    form = out.__class__ if isinstance(out, (tuple, list)) else alone
    results: Iterable[object] = out if isinstance(out, (tuple, list)) else (out,)
    tensors = [one for one in results if isinstance(one, Tensor)]
    if not all(one is None or (isinstance(one, Tensor) and _is_new(one)) for one in results):
        return None
    if not tensors or len({storage_of(tensor)._cdata for tensor in tensors}) < len(tensors):
        return None
    made = ((tuple(t.shape), t.stride(), t.dtype) if isinstance(t, Tensor) else None for t in results)
    return Shapes(form, tuple(made))


def _is_new(tensor: Tensor) -> bool:
    """Whether a result is a dense tensor in memory of its own, and of just the size that it needs."""
    if tensor.__class__ is not Tensor or tensor.layout is not STRIDED or tensor.is_nested:
        return False
    if not is_physically_meta(tensor) or tensor.storage_offset() or tensor.is_conj() or tensor.is_neg():
        return False
    storage = storage_of(tensor)
    fresh = new_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
    return storage._wt is HOST_TAG and bool(storage.nbytes() == storage_of(fresh).nbytes())
