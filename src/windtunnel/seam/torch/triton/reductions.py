"""`tl.reduce` and `tl.associative_scan`: whole blocks at once, where the interpreter goes element by element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from windtunnel.seam.torch.triton import values
from windtunnel.seam.torch.triton.base import Base, JITFunction, Type, Value
from windtunnel.seam.torch.triton.values import Array


class Reductions(Base):
    """Operations along an axis with a function of the program's, or one of Triton's."""

    def _reduce(
        self, given: object, axis: int | None, combine: JITFunction, keep_dims: bool = False, **_: object
    ) -> object:
        """`tl.reduce`: sums and extremes by numpy, everything else by halves."""
        inputs = given if isinstance(given, tuple) else (given,)
        packed = any(values.is_packed(part.handle.dtype.scalar.name) for part in inputs)
        standard = self._language.standard
        known = (
            standard._argmin_combine_tie_break_left, standard._argmax_combine_tie_break_left,
            standard._elementwise_max, standard._elementwise_min, standard._sum_combine,
        )  # fmt: skip
        if not packed and any(combine is one for one in known):
            for least, place in ((np.inf, 0), (-np.inf, 1)):
                if combine is known[place]:
                    inputs = (self._numbers(inputs[0], least), *inputs[1:])
            given = inputs if isinstance(given, tuple) else inputs[0]
            return self._module.ReduceOps(axis, combine, keep_dims).apply(given)
        found = self._by_halves(inputs, axis, combine, keep_dims)
        return found if isinstance(given, tuple) else found[0]

    def _numbers(self, value: Value, least: float) -> object:
        """A block whose NaN are as good as none: comparisons skip them (triton-lang/triton#10291, mended in #10298)."""
        data = value.handle.data
        if data.dtype.kind != "f" or not np.isnan(data).any() or np.isnan(data).all():
            return value
        return self._block(np.where(np.isnan(data), data.dtype.type(least), data), value.dtype)

    def _by_halves(
        self, inputs: Sequence[Value], axis: int | None, combine: JITFunction, keep_dims: bool
    ) -> tuple[object, ...]:
        """A reduction whose neighbours are combined until one is left; the length is a power of two."""
        shape = inputs[0].handle.data.shape
        parts = [(part.handle.data, part.dtype) for part in inputs]
        if axis is None:
            parts = [(data.reshape(-1), dtype) for data, dtype in parts]
        along = 0 if axis is None else axis % len(shape)
        while parts[0][0].shape[along] > 1:
            even = [self._block(np.take(data, range(0, data.shape[along], 2), along), dtype) for data, dtype in parts]
            odd = [self._block(np.take(data, range(1, data.shape[along], 2), along), dtype) for data, dtype in parts]
            made = self.function(combine)(*even, *odd)
            results = made if isinstance(made, tuple) else (made,)
            parts = [(part.handle.data, dtype) for part, (_, dtype) in zip(results, parts, strict=True)]
        found = []
        for data, dtype in parts:
            if axis is None:
                data = data.reshape((1,) * len(shape)) if keep_dims else data.reshape(-1)[0]
            elif not keep_dims:
                data = data.squeeze(along)
            found.append(self._result(data, dtype))
        return tuple(found)

    def _scan(self, given: object, axis: int, combine: JITFunction, reverse: bool = False, **_: object) -> object:
        """`tl.associative_scan`: sums and products by numpy, everything else in steps of doubled distance."""
        inputs = given if isinstance(given, tuple) else (given,)
        packed = any(values.is_packed(part.handle.dtype.scalar.name) for part in inputs)
        standard = self._language.standard
        if not packed and any(combine is one for one in (standard._sum_combine, standard._prod_combine)):
            return self._module.ScanOps(axis, combine, reverse).apply(given)
        along = axis % len(inputs[0].handle.data.shape)
        parts = [(part.handle.data, part.dtype) for part in inputs]
        if reverse:
            parts = [(np.flip(data, along), dtype) for data, dtype in parts]
        length, distance = parts[0][0].shape[along], 1
        while distance < length:
            before = [self._block(np.roll(data, distance, along), dtype) for data, dtype in parts]
            after = [self._block(data, dtype) for data, dtype in parts]
            made = self.function(combine)(*before, *after)
            results = made if isinstance(made, tuple) else (made,)
            first = range(distance)  # which have nothing before them at that distance
            rest = range(distance, length)
            parts = [
                (np.concatenate([np.take(data, first, along), np.take(part.handle.data, rest, along)], along), dtype)
                for part, (data, dtype) in zip(results, parts, strict=True)
            ]
            distance *= 2
        if reverse:
            parts = [(np.flip(data, along), dtype) for data, dtype in parts]
        found = tuple(self._result(data, dtype) for data, dtype in parts)
        return found if isinstance(given, tuple) else found[0]

    def _block(self, data: Array, dtype: Type) -> object:
        return self._language.tensor(self._handle(data, dtype), self._language.block_type(dtype, list(data.shape)))

    def _result(self, data: Array, dtype: Type) -> object:
        if np.ndim(data):
            return self._block(data, dtype)
        return self._language.tensor(self._handle(np.array([data]), dtype), dtype)
