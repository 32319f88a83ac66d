"""`histc`: CUDA counts integers, for which the CPU has no kernel, and waits for the bounds that it is not given.

It finds a number's bin by one division in the number's type, where the CPU looks through the bins' edges. Source:
aten/src/ATen/native/cuda/SummaryOps.cu (`_histc_cuda`, `getBin`); seen in pytorch/pytorch#87657. `determinism` has the
text of its refusal.
"""

from __future__ import annotations

import torch

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.dispatch.moves import fetch
from windtunnel.seam.torch.kernels.substitutes import SubstituteKernel, substituted
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Result
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.dtypes import INTEGERS, WIDE
from windtunnel.seam.torch.tags import device_of

Tensor = torch.Tensor
NAME = "aten::histc"


class OfIntegers(SubstituteKernel):
    """`histc` of integers, counted in float64, where each is exact."""

    def __call__(self, tensor: Tensor, *args: object, out: Tensor | None = None, **kwargs: object) -> object:
        counts = torch.ops.aten.histc.default(tensor.double(), *args, **kwargs).to(tensor.dtype)
        return counts if out is None else out.resize_(counts.shape).copy_(counts)


class OfNumbers(SubstituteKernel):
    """`histc` of floating-point numbers."""

    def __call__(
        self, tensor: Tensor, bins: int = 100, min: float = 0, max: float = 0, *, out: Tensor | None = None
    ) -> Tensor:
        counts: Tensor = torch.ops.aten.histc.default(tensor, bins, min, max)  # which raises PyTorch's errors
        if tensor.numel():
            least, most = (torch.tensor(bound, dtype=tensor.dtype, device="cpu") for bound in (min, max))
            if least == most:
                least, most = tensor.min(), tensor.max()
            if least == most:
                least, most = least - 1, most + 1
            inside = tensor[(tensor >= least) & (tensor <= most)]
            found = ((inside - least) * bins / (most - least)).long().clamp(max=bins - 1)
            counts = torch.bincount(found, minlength=bins).to(tensor.dtype)
        return counts if out is None else out.resize_(counts.shape).copy_(counts)


def _kernel(func: OpOverload, args: Arguments, kwargs: Keywords) -> Result:
    tensor = args[0]
    if tensor.is_meta:
        return func
    return OfNumbers(func) if tensor.is_floating_point() else OfIntegers(func)


_counting, VALUES = substituted([NAME], _kernel)


def histc(dispatch: Dispatch, call: Call) -> object:
    """aten::histc, which waits for the least and the greatest value where it is given no bounds."""
    given = call.named()
    tensor = given["self"]
    if device_of(tensor) >= 0 and tensor.numel() and given.get("min", 0) == given.get("max", 0):
        for _ in ("min", "max"):
            fetch(dispatch.state, tensor, call.plan.name, 1)
    return _counting[NAME](dispatch, call)


HANDLERS = {NAME: histc}
"""Operators with handlers of their own; `VALUES` computes them in a replay."""
DTYPES = {NAME: ("histc", WIDE | INTEGERS)}
