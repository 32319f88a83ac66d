"""Values that a kernel has read and nobody has written, until it uses them: what `tl.where` leaves out does no harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from windtunnel.seam.torch.triton.base import Base, TensorHandle
from windtunnel.seam.torch.triton.memory import Mask

USES = ("binary_op", "unary_op", "create_dot", "create_fma", "create_masked_store", "create_addptr", "create_trans")
"""What the builder computes by, other than choices."""
MOVES = ("cast_impl", "create_fp_to_fp", "create_bitcast", "create_broadcast")
"""What keeps values in their places, or repeats them."""


class Unwritten(NamedTuple):
    """A value of which some elements were never written; kept, since it is known by its identity."""

    handle: TensorHandle
    lanes: Mask
    report: Callable[[], None]


class Undefined(Base):
    """The builder's operations on values that may be undefined."""

    def __init__(self) -> None:
        super().__init__()
        self._unwritten: dict[int, Unwritten] = {}
        self._left: set[int] = set()
        """Those of which only a choice was made, and those that were used."""
        self._used: set[int] = set()

    def hold(self, handle: TensorHandle) -> None:
        """A load's result, if memory says that a part of it was never written."""
        found, self.now.unwritten = self.now.unwritten, None
        if found is not None:
            self._unwritten[id(handle)] = Unwritten(handle, *found)

    def settle(self) -> None:
        """A program has ended: report what it used of them, and what nobody saw it leave out."""
        for key, known in self._unwritten.items():
            if key in self._used or key not in self._left:
                known.report()
        for kept in (self._unwritten, self._left, self._used):
            kept.clear()

    def _derived(self, made: TensorHandle, parent: TensorHandle, lanes: Mask | bool) -> None:
        known = self._unwritten.get(id(parent))
        if known is None:
            return
        self._left.add(id(parent))
        rest = np.broadcast_to(known.lanes, made.data.shape) & lanes
        if rest.any():
            self._unwritten[id(made)] = Unwritten(made, rest, known.report)

    def _watching(self, name: str) -> Callable[..., object]:
        """An operation of the builder's that uses its operands."""
        operation = getattr(self, name, None) or getattr(self._builder, name)

        def watched(*operands: object, **named: object) -> object:
            if self._unwritten:
                self._used.update(id(one) for one in operands if id(one) in self._unwritten)
            return operation(*operands, **named)

        return watched

    def _moving(self, name: str) -> Callable[..., object]:
        operation: Callable[..., TensorHandle] = getattr(self, name, None) or getattr(self._builder, name)

        def moved(value: TensorHandle, *how: object, **named: object) -> object:
            made = operation(value, *how, **named)
            if self._unwritten:
                self._derived(made, value, True)
            return made

        return moved

    def _choosing(self) -> Callable[..., object]:
        """`ternary_op`: a choice takes what it chooses."""
        operation: Callable[..., TensorHandle] = getattr(self, "ternary_op", self._builder.ternary_op)

        def chosen(first: TensorHandle, second: TensorHandle, third: TensorHandle, how: object) -> object:
            made = operation(first, second, third, how)
            if self._unwritten and how is np.where:
                condition = np.asarray(first.data, dtype=np.bool_)
                self._used.update({id(first)} & self._unwritten.keys())
                self._derived(made, second, condition)
                self._derived(made, third, ~condition)
            elif self._unwritten:
                self._used.update({id(first), id(second), id(third)} & self._unwritten.keys())
            return made

        return chosen

    def watching(self) -> dict[str, Callable[..., object]]:
        """What stands in the builder while a kernel runs."""
        uses = {name: self._watching(name) for name in USES if hasattr(self._builder, name)}
        moves = {name: self._moving(name) for name in MOVES if hasattr(self._builder, name)}
        return uses | moves | {"ternary_op": self._choosing()}
