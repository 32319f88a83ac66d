"""Integers divided by zero: CUDA's kernels give numbers where the CPU's raise ZeroDivisionError.

C++ says nothing of it; the GPU's division sets all bits of up to 32, which bytes and shorts are divided in as well. Of
64 bits, where the operands fit 32 without a sign, it divides those, and else sets all. A floor rounds what that gives.

Sources: BinaryRemainderKernel.cu, BinaryDivTruncKernel.cu and BinaryDivFloorKernel.cu (aten/src/ATen/native/cuda), with
`div_floor_integer` of c10/util/generic_math.h; the numbers are those of test_fmod_remainder_by_zero_integral
(test/test_binary_ufuncs.py), pytorch/pytorch#89418, #135330 and #165650.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from windtunnel.seam.torch.kernels.complex_half import in_complex64
from windtunnel.seam.torch.plans.arguments import overload_of

Tensor = torch.Tensor
Kernel = Callable[..., object]
Operand = Tensor | int | float
aten = torch.ops.aten
WORD = (1 << 32) - 1
INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
REST, TRUNCATED, FLOORED = "rest", "trunc", "floor"


def by_zero(dividend: Tensor, how: str) -> Tensor:
    """What CUDA gives for each dividend of an integer type."""
    ones = torch.full_like(dividend, 255 if dividend.dtype is torch.uint8 else -1)
    if dividend.dtype is torch.int64:
        ones = torch.where((dividend >= 0) & (dividend <= WORD), WORD, ones)
    return torch.where(dividend < 0, ones - 1, ones) if how == FLOORED else ones


def divided(kernel: Kernel, how: str | None) -> Kernel:
    """An operator's kernel that takes zeros among its divisors; without `how`, its rounding mode says it."""

    def run(first: Operand, second: Operand, **kwargs: object) -> object:
        rounding = how or kwargs.get("rounding_mode")
        zero = _zeros(first, second) if rounding is not None else None
        if zero is None:
            return kernel(first, second, **kwargs)
        common = torch.result_type(first, second)
        dividend = torch.as_tensor(first, device="cpu").to(common)
        divisor = torch.as_tensor(second, device="cpu").to(common)
        given = torch.where(zero, by_zero(dividend, str(rounding)), 0)  # before `first` is written, where it is
        made = kernel(first, torch.where(zero, 1, divisor) if isinstance(second, Tensor) else 1, **kwargs)
        assert isinstance(made, Tensor)
        return made.copy_(torch.where(zero, given.to(made.dtype), made))

    return run


def _zeros(first: Operand, second: Operand) -> Tensor | None:
    """Where the divisor is zero, for integers; None where it nowhere is."""
    types = [value.dtype for value in (first, second) if isinstance(value, Tensor)]
    if not INTEGERS.issuperset(types) or any(isinstance(value, float) for value in (first, second)):
        return None
    if any(isinstance(value, Tensor) and value.is_meta for value in (first, second)):
        return None
    zero = second == 0 if isinstance(second, Tensor) else torch.tensor(second == 0, device="cpu")
    return zero if bool(zero.any()) else None


NAMES: dict[str | None, tuple[str, ...]] = {
    REST: (
        "remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", "remainder.Tensor_out",
        "remainder_.Tensor", "remainder_.Scalar", "fmod.Tensor", "fmod.Scalar", "fmod.Tensor_out",
        "fmod_.Tensor", "fmod_.Scalar",
    ),
    FLOORED: ("floor_divide.default", "floor_divide.Scalar", "floor_divide.out", "floor_divide_.Tensor",
              "floor_divide_.Scalar"),
    None: ("div.Tensor_mode", "div.Scalar_mode", "div.out_mode", "div_.Tensor_mode", "div_.Scalar_mode"),
}  # fmt: skip


RUN = {
    func.name(): divided(in_complex64(func) if how is None else func._op, how)
    for how, names in NAMES.items()
    for func in map(overload_of, names)
}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
