"""Numbers beside half precision tensors that CUDA's kernels take in float32, where the CPU's refuse large ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.halves import HALVES


def overflows(call: Call, error: RuntimeError) -> bool:
    """Whether an operator ended because a bound is larger than half precision's largest number, which CUDA compares."""
    return (
        call.plan.card.bounds
        and "without overflow" in str(error)
        and any(tensor.dtype in HALVES for tensor in call.tensors())
    )


def bounded(call: Call) -> Call:
    """The call with such bounds made infinite, which compare and are rounded as they do."""
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
