"""Operators whose CUDA code brings a value to the host before it goes on.

- `_linalg_check_errors`, which `torch.linalg.inv`, `cholesky`, `solve` and `lu_factor` end with: whether any matrix
  failed (aten/src/ATen/native/BatchLinearAlgebra.cpp; the `_ex` forms do not ask).
- `repeat_interleave` by a tensor, unless it is told the size of its result (native/Repeat.h).
- `masked_fill` with a value in a tensor on the device (`masked_fill__cuda` in native/cuda/Indexing.cu).
"""

from __future__ import annotations

from typing import Any

from understudy.seam.torch.dispatch import Dispatch
from understudy.seam.torch.moves import fetch
from understudy.seam.torch.operators import Plan
from understudy.seam.torch.tags import device_of


def check_errors(dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """aten::_linalg_check_errors: the host reads one truth of all matrices."""
    if device_of(args[0]) >= 0:
        fetch(dispatch.state, args[0], plan.name, elements=1)
    return dispatch.general(plan, func, args, kwargs)


def masked_fill(dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """aten::masked_fill.Tensor: the kernel takes a number, which the host reads first."""
    value = args[2] if len(args) > 2 else kwargs["value"]
    if device_of(value) >= 0:
        fetch(dispatch.state, value, plan.name)
    return dispatch.general(plan, func, args, kwargs)


def repeat(dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """aten::repeat_interleave.Tensor: the sum of the repeats is the size of the result."""
    if device_of(args[0]) >= 0 and kwargs.get("output_size") is None and not dispatch.state.no_data:
        fetch(dispatch.state, args[0], plan.name, elements=1)
    return dispatch.general(plan, func, args, kwargs)


HANDLERS = {
    "aten::_linalg_check_errors": check_errors,
    "aten::repeat_interleave.Tensor": repeat,
    "aten::masked_fill.Tensor": masked_fill,
    "aten::masked_fill_.Tensor": masked_fill,
}
"""Operators that `Dispatch` hands on whole, by name, or by name and overload."""
