"""Operators whose CUDA code brings values to the host before it goes on, one at a time.

- `_linalg_check_errors`, which `torch.linalg.inv`, `cholesky`, `solve` and `lu_factor` end with: whether any matrix
  failed (aten/src/ATen/native/BatchLinearAlgebra.cpp; the `_ex` forms do not ask). `torch.cholesky` and
  `cholesky_inverse` call it within C++.
- `repeat_interleave` by a tensor, unless it is told the size of its result (native/Repeat.h).
- `allclose`, for its answer (native/TensorCompare.cpp). What `histc` reads stands with its kernel, in `kernels.histc`.
- Numbers in tensors on the device: `masked_fill` (`masked_fill__cuda` in native/cuda/Indexing.cu), `index_fill`
  (native/TensorAdvancedIndexing.cpp), `linspace` and `logspace` (native/RangeFactories.cpp).
- Checks of arguments: deviations of `normal`, before the result and once more when it is filled
  (native/DistributionTemplates.h), the least and the greatest of `searchsorted`'s `sorter` (native/
  BucketizationUtils.h), whether the lengths of `segment_reduce` are positive and add up (native/SegmentReduce.cpp).
- `to_sparse` of a dense tensor, for the number of its elements (`dense_to_sparse` in native/TensorConversions.cpp).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from windtunnel.seam.torch.dispatch.asserts import guarded
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.dispatch.moves import fetch
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.tags import device_of

Tensors = list[torch.Tensor]


def _argument(name: str, times: int = 1) -> Callable[[Call], Tensors]:
    """One value of an argument, where it is a tensor, or of what was computed from it; so many `times`."""
    return lambda call: tensors_in((call.named().get(name),)) * times


def _numbers(call: Call) -> Tensors:
    """One value of each tensor, but of `out`."""
    return tensors_in(call.args)


def _repeats(call: Call) -> Tensors:
    return [] if call.named().get("output_size") is not None else call.tensors()


def _lengths(call: Call) -> Tensors:
    return [] if call.named().get("unsafe") else tensors_in((call.named().get("lengths"),)) * 2


def _dense(call: Call) -> Tensors:
    return [call.args[0]] if call.args[0].layout is torch.strided else []


_value, _sorter = _argument("value"), _argument("sorter", 2)
READ: dict[str, Callable[[Call], Tensors]] = {
    "aten::_linalg_check_errors": _numbers,
    "aten::_to_sparse": _dense,
    "aten::_to_sparse.sparse_dim": _dense,
    "aten::allclose": _argument("self"),
    "aten::cholesky": _numbers,
    "aten::cholesky_inverse": _numbers,
    "aten::normal.float_Tensor": _argument("std", 2),
    "aten::normal.Tensor_Tensor": _argument("std", 2),
    "aten::repeat_interleave.Tensor": _repeats,
    "aten::searchsorted.Scalar": _sorter,
    "aten::searchsorted.Tensor": _sorter,
    "aten::segment_reduce": _lengths,
    **dict.fromkeys((f"aten::{name}.Tensor" for name in ("masked_fill", "masked_fill_")), _value),
    **dict.fromkeys((f"aten::{name}.int_Tensor" for name in ("index_fill", "index_fill_")), _value),
    **{
        f"aten::{name}.{kinds}": _numbers
        for name in ("linspace", "logspace")
        for kinds in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
    },
}
"""By name and overload, the tensors of which one value each is read; `out` goes with the name alone."""


def reading(dispatch: Dispatch, call: Call) -> object:
    """An operator of `READ`; what a kernel asserts of its indices it still does, unless they have been looked at."""
    looked = False
    for value in (READ.get(call.plan.func.name()) or READ[call.plan.name])(call):
        if device_of(value) >= 0:
            fetch(dispatch.state, value, call.plan.name, elements=1)
            looked = True
    if call.plan.card.asserts and not (looked and call.plan.name == "aten::repeat_interleave"):
        return guarded(dispatch, call)
    return dispatch.general(call)


HANDLERS = dict.fromkeys(READ, reading)
"""Operators with handlers of their own."""
