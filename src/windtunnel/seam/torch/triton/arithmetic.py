"""A kernel's arithmetic where numpy has not a GPU's: products, conversions, types kept as integers, libdevice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from windtunnel.seam.torch.triton import values
from windtunnel.seam.torch.triton.base import Base, Handle, Tile, Type
from windtunnel.seam.torch.triton.values import Array

PRECISIONS = {"fp16": "fp16", "bf16": "bf16", "fp64": "fp64", "int8": "int8", "uint8": "int8"}
KNOWN_FLOATS = frozenset({"fp16", "fp32", "fp64", *values.FORMATS})


class Arithmetic(Base):
    """The builder's operations on values."""

    def create_dot(self, a: Handle, b: Handle, d: Handle, precision: object, imprecise: object) -> Handle:
        """A product and a sum, accumulated in float32, or exactly for integers."""
        x, y = self._operand(a), self._operand(b)
        m, k, n = x.shape[-2], x.shape[-1], y.shape[-1]
        kind = a.dtype.scalar.name
        if kind == "fp32":
            arithmetic = "fp32" if precision == self._ir.INPUT_PRECISION.IEEE else "tf32"
        else:
            arithmetic = "fp8" if kind.startswith("fp8") else PRECISIONS.get(kind, "fp32")
        size = a.data.dtype.itemsize * (m * k + k * n)
        self.work.product(prod(x.shape[:-2]), Tile(m, n, k, arithmetic, size))
        out = d.dtype.scalar
        if values.is_packed(out.name):
            total = np.add(values.product(x, y), values.widened(d.data, out.name))
            return self._handle(values.narrowed(total, out.name), out)
        if d.data.dtype.kind in "iu":
            product = values.product(x.astype(np.float64), y.astype(np.float64)).astype(np.int64)
            return self._handle(np.add(product, d.data).astype(d.data.dtype), out)
        return self._handle(np.add(values.product(x, y), d.data).astype(d.data.dtype), out)

    def _operand(self, handle: Handle) -> Array:
        name = handle.dtype.scalar.name
        if values.is_packed(name):
            return values.widened(handle.data, name)
        return handle.data.astype(np.float32) if handle.data.dtype == np.float16 else handle.data

    def get_bf16(self, value: float) -> Handle:
        """A constant."""
        return self._handle(values.narrowed(np.array([value]), "bf16"), self._language.bfloat16)

    def cast_impl(self, source: Handle, dtype: Type) -> Handle:
        """A conversion."""
        before, after = source.dtype.scalar, dtype.scalar
        data = source.data
        if values.is_packed(before.name):
            data = values.widened(data, before.name)
        if values.is_packed(after.name):
            return self._handle(values.narrowed(data, after.name), after)
        return self._handle(data.astype(self._type(dtype)), after)

    def create_fp_to_fp(self, source: Handle, dtype: Type, rounding: object) -> Handle:
        """A conversion between floating-point types; towards zero only where the kernel asks for that."""
        before, after = source.dtype.scalar, dtype.scalar
        if rounding == self._ir.ROUNDING_MODE.RTZ or not {before.name, after.name} <= KNOWN_FLOATS:
            made: Handle = type(self._builder).create_fp_to_fp(self._builder, source, dtype, rounding)
            return made
        return self.cast_impl(source, dtype)

    def binary_op(self, left: Handle, right: Handle, operation: Callable[..., Array]) -> Handle:
        """An operation on two tensors."""
        dtype = left.dtype.scalar
        if values.is_packed(dtype.name) and right.dtype.scalar.name == dtype.name and not _bitwise(operation):
            found = operation(values.widened(left.data, dtype.name), values.widened(right.data, dtype.name))
            packed = found if found.dtype == np.bool_ else values.narrowed(found, dtype.name)
            return self._handle(packed, dtype)
        made: Handle = type(self._builder).binary_op(self._builder, left, right, operation)
        return made

    def ternary_op(self, first: Handle, second: Handle, third: Handle, operation: Callable[..., Array]) -> Handle:
        """An operation on three tensors."""
        dtype = third.dtype.scalar
        if values.is_packed(dtype.name) and operation is not np.where:
            given = (values.widened(handle.data, dtype.name) for handle in (first, second, third))
            return self._handle(values.narrowed(operation(*given), dtype.name), dtype)
        made: Handle = type(self._builder).ternary_op(self._builder, first, second, third, operation)
        return made

    def create_fma(self, x: Handle, y: Handle, z: Handle) -> Handle:
        """A multiplication and an addition."""
        return self.ternary_op(x, y, z, _multiply_add)

    def unary_op(self, handle: Handle, operation: Callable[[Array], Array]) -> Handle:
        """An operation on one tensor."""
        dtype = handle.dtype.scalar
        if values.is_packed(dtype.name):
            found = operation(values.widened(handle.data, dtype.name))
            return self._handle(values.narrowed(found, dtype.name), dtype)
        return self._handle(operation(handle.data), dtype)

    def create_erf(self, handle: Handle) -> Handle:
        """The error function."""
        return self.unary_op(handle, values.erf)

    def create_extern_elementwise(
        self, library: str, path: str, symbol: str, arguments: Sequence[Handle], dtype: Type, pure: bool
    ) -> Handle:
        """A function of libdevice."""
        function = values.libdevice(symbol)
        if function is None or path:
            raise NotImplementedError(f"{symbol} not supported in interpreter mode")
        found = function(*(handle.data for handle in arguments))
        return self._handle(np.asarray(found).astype(self._type(dtype)), dtype.scalar)


def _bitwise(operation: object) -> bool:
    return operation in (np.bitwise_and, np.bitwise_or, np.bitwise_xor)


def _multiply_add(x: Array, y: Array, z: Array) -> Array:
    return np.asarray(np.add(np.multiply(x, y), z))
