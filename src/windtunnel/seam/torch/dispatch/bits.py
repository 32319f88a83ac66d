"""Operators that move elements and look at none, of dtypes that the CPU's kernels do not take: as integers as wide."""

from __future__ import annotations

import torch

from windtunnel.seam.torch.plans.arguments import Result
from windtunnel.seam.torch.plans.call import Call

Tensor = torch.Tensor
WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by the bytes of an element, whose bits are the element's."""


def moves(call: Call, error: RuntimeError) -> bool:
    """Whether an operator that ended with `error` moves elements of a dtype that the CPU's kernel does not take."""
    return call.plan.card.moves and "not implemented for" in str(error) and call.args[0].element_size() in WIDTHS


def moved(call: Call) -> Result:
    """The result of an operator by the bits of the tensors that have the dtype of the first."""
    args = call.args
    dtype = args[0].dtype
    width = WIDTHS[args[0].element_size()]

    def as_bits(name: str, value: object) -> object:
        if name == "value":
            return torch.tensor(value, dtype=dtype).view(width).item()
        return value.view(width) if isinstance(value, Tensor) and value.dtype is dtype else value

    given = [
        as_bits(parameter.name, value) for parameter, value in zip(call.plan.func._schema.arguments, args, strict=False)
    ]
    found: Result = call.func(*given, **{name: as_bits(name, value) for name, value in call.kwargs.items()})
    return args[0] if call.plan.mutated or not isinstance(found, Tensor) else found.view(dtype)
