"""Half precision complex numbers (complex32): CUDA's kernels compute them in complex64, the CPU has none.

The operators are those that have complex32 for CUDA but not for the CPU in PyTorch 2.6's own operator database (`op_db`
of torch/testing/_internal/common_methods_invocations.py); convolutions are made of real ones. `nan_sums` has `nansum`,
`other_kernels` `trace`, `integer_division` quotients that are rounded, `half_sums` `prod`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._prims_common.wrappers import _maybe_resize_out

from windtunnel.seam.torch.plans.arguments import OpOverload
from windtunnel.seam.torch.plans.halves import FULL
from windtunnel.seam.torch.tags import VERSION

aten = torch.ops.aten
Kernel = Callable[..., object]
NARROW = {torch.complex64: torch.complex32, torch.float32: torch.float16}
NAMES = (
    "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "cos", "cosh", "div", "exp", "lerp", "log", "pow",
    "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "sum", "tan", "tanh", "true_divide",
    *(("logaddexp",) if VERSION >= (2, 10) else ()),
)  # fmt: skip


def is_half(value: object) -> bool:
    """Whether a value is a tensor of complex32 that has bytes."""
    return isinstance(value, torch.Tensor) and value.dtype is torch.complex32 and not value.is_meta


def wide(value: object) -> object:
    """Such a tensor in complex64; anything else as it is."""
    return value.to(torch.complex64) if isinstance(value, torch.Tensor) and is_half(value) else value


def in_complex64(func: OpOverload) -> Kernel:
    """The operator, with tensors of complex32 made complex64 where the CPU refuses them, and its result half again."""
    stock: Kernel = func._op
    writes = bool(func._schema.arguments) and func._schema.name.endswith("_")

    def run(*args: object, **kwargs: object) -> object:
        try:
            return stock(*args, **kwargs)
        except RuntimeError:  # it asks for the type before it writes anything
            wanted = kwargs.get("dtype")
            if not (wanted is torch.complex32 or any(map(is_half, args))):
                raise
        options = {name: value for name, value in kwargs.items() if name != "out"}
        if wanted is torch.complex32:
            options["dtype"] = torch.complex64
        compute = func._overloadpacket if "out" in kwargs else stock
        result = compute(*map(wide, args), **options)
        assert isinstance(result, torch.Tensor)
        if wanted in (None, torch.complex32):
            result = result.to(NARROW.get(result.dtype, result.dtype))
        into = args[0] if writes else kwargs.get("out")
        if not isinstance(into, torch.Tensor):
            return result
        if not torch.can_cast(result.dtype, into.dtype):
            return stock(*args, **kwargs)  # PyTorch's own error
        return _maybe_resize_out(into, result.shape).copy_(result)

    FULL[run] = stock
    return run


def _overloads(name: str) -> list[OpOverload]:
    packets = [getattr(aten, found) for found in (name, f"{name}_") if hasattr(aten, found)]
    every = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    return [func for func in every if any("Tensor" in str(a.type) for a in func._schema.arguments)]


RUN = {
    func.name(): in_complex64(func) for name in NAMES for func in _overloads(name) if not func.name().endswith("_mode")
}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
