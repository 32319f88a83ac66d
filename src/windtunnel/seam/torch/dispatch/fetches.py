"""Operators whose CUDA code brings a value to the host before it goes on.

- `_linalg_check_errors`, which `torch.linalg.inv`, `cholesky`, `solve` and `lu_factor` end with: whether any matrix
  failed (aten/src/ATen/native/BatchLinearAlgebra.cpp; the `_ex` forms do not ask).
- `repeat_interleave` by a tensor, unless it is told the size of its result (native/Repeat.h).
- `allclose`, for its answer (native/TensorCompare.cpp). What `histc` reads stands with its kernel, in `kernels.histc`.
- `masked_fill` with a value in a tensor on the device (`masked_fill__cuda` in native/cuda/Indexing.cu).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.dispatch.moves import fetch
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.tags import device_of

READ: dict[str, Callable[[Arguments, Keywords], torch.Tensor | None]] = {
    "aten::_linalg_check_errors": lambda args, _: args[0],
    "aten::allclose": lambda args, _: args[0],
    "aten::masked_fill.Tensor": lambda args, kwargs: args[2] if len(args) > 2 else kwargs["value"],
    "aten::masked_fill_.Tensor": lambda args, kwargs: args[2] if len(args) > 2 else kwargs["value"],
    "aten::repeat_interleave.Tensor": lambda args, kwargs: None if kwargs.get("output_size") is not None else args[0],
}
"""By name and overload, the tensor of which one value is read; None where none is."""


def reading(dispatch: Dispatch, call: Call) -> object:
    """An operator of `READ`."""
    value = READ[call.plan.func.name()](call.args, call.kwargs)
    if value is not None and device_of(value) >= 0:
        fetch(dispatch.state, value, call.plan.name, elements=1)
    return dispatch.general(call)


HANDLERS = dict.fromkeys(READ, reading)
"""Operators with handlers of their own."""
