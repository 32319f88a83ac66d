"""Scatters that combine what falls on one place: CUDA's only add complex numbers and truth values.

Source: aten/src/ATen/native/cuda/ScatterGatherKernel.cu, whose sums are instantiated for all types and whose other
combinations for the types of AT_DISPATCH_ALL_TYPES_AND2.
"""

from __future__ import annotations

from windtunnel.seam.torch.dispatch.asserts import guarded
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.dtypes import INTEGERS, REAL, refusal
from windtunnel.seam.torch.tags import device_of

FROM_TENSOR, FROM_NUMBER = "cuda_scatter_gather_base_kernel_func", "cuda_scatter_fill_base_kernel_reduce_multiply"
SUMS = ("add", "sum")
"""What `reduce` is called for a sum in `scatter` and in `scatter_reduce`."""


def combined(dispatch: Dispatch, call: Call) -> object:
    """An operator that scatters, which may be told how to combine."""
    given = call.named()
    kind, target = given.get("reduce"), call.args[0]
    if kind is not None and kind not in SUMS and target.dtype not in REAL | INTEGERS and device_of(target) >= 0:
        raise refusal(FROM_NUMBER if "value" in given else FROM_TENSOR, target.dtype)
    return guarded(dispatch, call)


HANDLERS = dict.fromkeys(("aten::scatter", "aten::scatter_", "aten::scatter_reduce", "aten::scatter_reduce_"), combined)
"""Operators with handlers of their own."""
