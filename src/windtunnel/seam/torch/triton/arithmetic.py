"""A kernel's arithmetic where numpy has not a GPU's: products, conversions, types kept as integers, libdevice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import torch

from windtunnel.ptx import inline
from windtunnel.seam.torch.triton import values
from windtunnel.seam.torch.triton.base import UNSUPPORTED, Base, TensorHandle, Tile, Type
from windtunnel.seam.torch.triton.values import Array

PRECISIONS = {"fp16": "fp16", "bf16": "bf16", "fp64": "fp64", "int8": "int8", "uint8": "int8"}
KNOWN_FLOATS = frozenset({"fp16", "fp32", "fp64", *values.FORMATS})


class Arithmetic(Base):
    """The builder's operations on values."""

    def create_dot(
        self, a: TensorHandle, b: TensorHandle, d: TensorHandle, input_precision: object, max_num_imprecise_acc: object
    ) -> TensorHandle:
        """A product and a sum, accumulated in float32, or exactly for integers."""
        x, y = self._operand(a), self._operand(b)
        m, k, n = x.shape[-2], x.shape[-1], y.shape[-1]
        kind = a.dtype.scalar.name
        if kind == "fp32":
            arithmetic = "fp32" if input_precision == self._ir.INPUT_PRECISION.IEEE else "tf32"
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

    def create_dot_scaled(
        self, lhs: TensorHandle, lhs_scale_handle: TensorHandle | None, lhs_format_enum: object,
        rhs: TensorHandle, rhs_scale_handle: TensorHandle | None, rhs_format_enum: object,
        fast_math: bool, lhs_k_pack: bool, rhs_k_pack: bool, acc_handle: TensorHandle,
    ) -> TensorHandle:  # fmt: skip
        """A product of operands in blocks with one power of two each (OCP's "Microscaling Formats"), in float32."""
        fp4 = self._ir.ScaleDotElemTypeTY.E2M1
        x, y = self._operand(lhs), self._operand(rhs)
        if lhs_format_enum == fp4:
            x = values.unpacked(lhs.data, -1 if lhs_k_pack else -2)
        if rhs_format_enum == fp4:
            y = values.unpacked(rhs.data, -2 if rhs_k_pack else -1)
        if lhs_scale_handle is not None:
            x = values.scaled(x, lhs_scale_handle.data)
        if rhs_scale_handle is not None:  # which has the rows of the transposed operand
            y = np.swapaxes(values.scaled(np.swapaxes(y, -1, -2), rhs_scale_handle.data), -1, -2)
        m, k, n = x.shape[-2], x.shape[-1], y.shape[-1]
        # Tensor cores before Blackwell's take no scales: Triton's compiler writes the operands out in 16 bits there
        # (DecomposeScaledBlocked.cpp).
        arithmetic = "fp8" if torch.cuda.get_device_capability()[0] >= 10 else "bf16"
        self.work.product(prod(x.shape[:-2]), Tile(m, n, k, arithmetic, lhs.data.nbytes + rhs.data.nbytes))
        total = np.add(values.product(x, y), acc_handle.data)
        return self._handle(total.astype(acc_handle.data.dtype), acc_handle.dtype.scalar)

    def _operand(self, handle: TensorHandle) -> Array:
        name = handle.dtype.scalar.name
        if values.is_packed(name):
            return values.widened(handle.data, name)
        return handle.data.astype(np.float32) if handle.data.dtype == np.float16 else handle.data

    def get_bf16(self, value: float) -> TensorHandle:
        """A constant."""
        return self._handle(values.narrowed(np.array([value]), "bf16"), self._language.bfloat16)

    def cast_impl(self, src: TensorHandle, dst_type: Type) -> TensorHandle:
        """A conversion."""
        before, after = src.dtype.scalar, dst_type.scalar
        data = src.data
        if values.is_packed(before.name):
            data = values.widened(data, before.name)
        if values.is_packed(after.name):
            return self._handle(values.narrowed(data, after.name), after)
        kind = np.dtype(self._type(dst_type))
        is_whole = kind.kind in "iu" and data.dtype.kind == "f"
        return self._handle(values.whole(data, kind) if is_whole else data.astype(kind), after)

    def create_fp_to_fp(self, src: TensorHandle, dst_type: Type, rounding_mode: object) -> TensorHandle:
        """A conversion between floating-point types; towards zero only where the kernel asks for that."""
        before, after = src.dtype.scalar, dst_type.scalar
        if rounding_mode == self._ir.ROUNDING_MODE.RTZ or not {before.name, after.name} <= KNOWN_FLOATS:
            made: TensorHandle = type(self._builder).create_fp_to_fp(self._builder, src, dst_type, rounding_mode)
            return made
        return self.cast_impl(src, dst_type)

    def binary_op(self, lhs: TensorHandle, rhs: TensorHandle, op: Callable[..., Array]) -> TensorHandle:
        """An operation on two tensors."""
        dtype = lhs.dtype.scalar
        if values.is_packed(dtype.name) and rhs.dtype.scalar.name == dtype.name and not _bitwise(op):
            found = op(values.widened(lhs.data, dtype.name), values.widened(rhs.data, dtype.name))
            packed = found if found.dtype == np.bool_ else values.narrowed(found, dtype.name)
            return self._handle(packed, dtype)
        made: TensorHandle = type(self._builder).binary_op(self._builder, lhs, rhs, op)
        return made

    def ternary_op(
        self, lhs: TensorHandle, rhs: TensorHandle, other: TensorHandle, op: Callable[..., Array]
    ) -> TensorHandle:
        """An operation on three tensors."""
        dtype = other.dtype.scalar
        if values.is_packed(dtype.name) and op is not np.where:
            given = (values.widened(handle.data, dtype.name) for handle in (lhs, rhs, other))
            return self._handle(values.narrowed(op(*given), dtype.name), dtype)
        made: TensorHandle = type(self._builder).ternary_op(self._builder, lhs, rhs, other, op)
        return made

    def create_fma(self, x: TensorHandle, y: TensorHandle, z: TensorHandle) -> TensorHandle:
        """A multiplication and an addition."""
        return self.ternary_op(x, y, z, _multiply_add)

    def unary_op(self, arg: TensorHandle, op: Callable[[Array], Array]) -> TensorHandle:
        """An operation on one tensor."""
        dtype = arg.dtype.scalar
        if values.is_packed(dtype.name):
            found = op(values.widened(arg.data, dtype.name))
            return self._handle(values.narrowed(found, dtype.name), dtype)
        return self._handle(op(arg.data), dtype)

    def create_erf(self, arg: TensorHandle) -> TensorHandle:
        """The error function."""
        return self.unary_op(arg, values.erf)

    def create_extern_elementwise(
        self, libName: str, libPath: str, symbol: str, argList: Sequence[TensorHandle], retType: Type, isPure: bool
    ) -> TensorHandle:
        """A function of libdevice."""
        function = values.libdevice(symbol)
        if function is None or libPath:
            raise NotImplementedError(f"{symbol} {UNSUPPORTED}")
        found = function(*(handle.data for handle in argList))
        return self._handle(np.asarray(found).astype(self._type(retType)), retType.scalar)

    def create_inline_asm(
        self, inlineAsm: str, constraints: str, values: Sequence[TensorHandle], type: Sequence[Type], isPure: bool,
        pack: int,
    ) -> AssemblyResults:  # fmt: skip
        """Inline assembly, once for `pack` elements of the block."""
        shape = values[0].data.shape if values else ()
        given = [np.ascontiguousarray(handle.data).reshape(-1) for handle in values]
        scalars = [one.scalar for one in type]
        dtypes = [np.dtype(self._type(scalar)) for scalar in scalars]
        if np.dtype(np.bool_) in (*dtypes, *(one.dtype for one in given)):
            raise NotImplementedError(f"inline assembly with operands of one bit {UNSUPPORTED}")
        found = inline.elementwise(inlineAsm, constraints, given, dtypes, pack)
        # Without operands there is one result, a scalar.
        blocks = (one.reshape(shape) if values else one[:1] for one in found)
        return AssemblyResults([self._handle(*one) for one in zip(blocks, scalars, strict=True)])


class AssemblyResults(NamedTuple):
    """What inline assembly gave, as Triton asks for it."""

    handles: Sequence[TensorHandle]

    def get_result(self, number: int) -> TensorHandle:
        """One of them."""
        return self.handles[number]


def _bitwise(operation: object) -> bool:
    return operation in (np.bitwise_and, np.bitwise_or, np.bitwise_xor)


def _multiply_add(x: Array, y: Array, z: Array) -> Array:
    return np.asarray(np.add(np.multiply(x, y), z))
