"""Numbers beside tensors that CUDA's kernels take in a wider type than the tensors', where the CPU's refuse large ones.

Beside half precision that is float32. `addcmul` takes its number in 64 bits beside integers, and what the result's type
does not hold is cut off (`at::acc_type` in aten/src/ATen/native/cuda/PointwiseOpsKernel.cu; pytorch/pytorch#153210).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch

from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.halves import HALVES

WRAPPING = frozenset({"aten::addcmul", "aten::addcmul_"})
INTEGER = re.compile(r"type (u?)int(?:(8|16)_t)? without overflow")
"""The type that C++ says its error of: an int of 8, 16 or 32 bits."""


def overflows(call: Call, error: RuntimeError) -> bool:
    """Whether an operator ended because a bound is larger than half precision's largest number, which CUDA compares."""
    if call.plan.name in WRAPPING and INTEGER.search(str(error)):
        return True
    return (
        call.plan.card.bounds
        and "without overflow" in str(error)
        and any(tensor.dtype in HALVES for tensor in call.tensors())
    )


def bounded(call: Call, error: RuntimeError) -> Call:
    """The call with such bounds made infinite, which compare and are rounded as they do; with integers cut off."""
    if (integer := INTEGER.search(str(error))) is not None:
        return call.but(kwargs=call.kwargs | {"value": _cut(int(call.kwargs["value"]), *integer.groups())})
    dtype = next(t.dtype for t in call.tensors() if t.dtype in HALVES)
    largest = torch.finfo(dtype).max

    def limited(value: object) -> object:
        if isinstance(value, (int, float)) and abs(value) > largest:
            return math.copysign(math.inf, value)
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [limited(part) for part in value]
        return value

    kwargs = {name: limited(value) for name, value in call.kwargs.items()}
    return call.but(args=tuple(map(limited, call.args)), kwargs=kwargs)


def _cut(number: int, unsigned: str, bits: str | None) -> int:
    """What an integer type of as many bits (32 without any) keeps of a number."""
    size = 1 << int(bits or 32)
    number %= size
    return number if unsigned or number < size // 2 else number - size
