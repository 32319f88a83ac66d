"""What kernels refuse of operators that write into a tensor, and PyTorch's meta kernels take or refuse otherwise.

Source: `TensorIteratorBase::compute_shape` and `compute_types` of aten/src/ATen/TensorIterator.cpp.
"""

from __future__ import annotations

import re
from functools import cache

import torch

from windtunnel.seam.torch.plans.arguments import Arguments, OpOverload
from windtunnel.seam.torch.type_names import scalar_type

Tensor = torch.Tensor
CAST = re.compile(
    r"(?:Attempting to cast from|result type) torch\.(\w+) (?:to out tensor with dtype|can't be cast to the desired "
    r"output type) torch\.(\w+)(?:, but this can't be cast because it is not safe!)?"
)


@cache
def is_checked(func: OpOverload) -> bool:
    """Whether an operator goes over elements and writes into its first argument."""
    name, overload = func._schema.name.removeprefix("aten::"), func._overloadname
    if not name.endswith("_"):
        return False
    plain = getattr(getattr(torch.ops.aten, name[:-1], None), overload, func)  # the tags of some stand there alone
    return torch.Tag.pointwise in (*func.tags, *plain.tags)


def check(args: Arguments) -> None:
    """Refuse what the first argument has no room for."""
    shapes = [one.shape for one in args if isinstance(one, Tensor)]
    try:
        together = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        return  # the operator says so itself
    if together != shapes[0]:
        raise RuntimeError(f"output with shape {list(shapes[0])} doesn't match the broadcast shape {list(together)}")


def worded(error: RuntimeError) -> RuntimeError:
    """An error of a meta kernel in the words of the others."""
    found = CAST.fullmatch(str(error))
    if found is None:
        return error
    result, wanted = (scalar_type(getattr(torch, name)) for name in found.groups())
    return RuntimeError(f"result type {result} can't be cast to the desired output type {wanted}")
