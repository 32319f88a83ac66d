"""cuFFT: the plan cache per device behind `torch.backends.cuda.cufft_plan_cache`, fed by the transforms themselves.

cuFFT transforms half precision too, where the sizes are powers of two; the CPU's libraries do not. Such values go
through float32 and back, which is at least as exact.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable

import torch

from windtunnel.machine.plan_cache import PlanCache
from windtunnel.operators.card import CUFFT
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.arguments import Result
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.standins import StandIn, public
from windtunnel.seam.torch.state import handles
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of, tag_of

HALVES = {torch.float16: torch.float32, torch.complex32: torch.complex64}
BACK = {torch.float32: torch.float16, torch.complex64: torch.complex32}
ONE_SIDED = "aten::_fft_c2r"
POWERS_OF_TWO = (
    "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, "
    "but got a signal size of {}"
)
"""aten/src/ATen/native/cuda/CuFFTPlanCache.h"""


def patches(state: State) -> list[Patch]:
    """`torch.fft`: transforms of half precision on a device, which C++ refuses on the CPU."""
    names = [
        f"{kind}{suffix}" for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft") for suffix in ("", "2", "n")
    ]
    found = {name: getattr(torch.fft, name) for name in names}
    return [p for name, f in found.items() for p in public(torch.fft, name, StandIn(f, _halves(state, f)))]


def _halves(state: State, stock: Callable[..., torch.Tensor]) -> Callable[..., object]:
    local = state.local

    @functools.wraps(stock)
    def transformed(
        input: torch.Tensor, *args: object, out: torch.Tensor | None = None, **kwargs: object
    ) -> torch.Tensor:
        if not (isinstance(input, torch.Tensor) and input.dtype in HALVES and device_of(input) >= 0):
            return stock(input, *args, **kwargs) if out is None else stock(input, *args, out=out, **kwargs)
        local.half, before = True, local.half
        try:
            wide = stock(input.to(HALVES[input.dtype]), *args, **kwargs)
        finally:
            local.half = before
        made = wide.to(BACK[wide.dtype])
        return made if out is None else out.resize_(made.shape).copy_(made)

    return transformed


def _cache(dispatch: Dispatch, index: int) -> PlanCache:
    state = dispatch.state
    torch.cuda._lazy_init()
    count = len(state.machine.devices)
    if not 0 <= index < count:
        raise RuntimeError(f"cufft_plan_cache: expected 0 <= device index < {count}, but got device with index {index}")
    return state.device(index).plan_cache


def size(dispatch: Dispatch, call: Call) -> int:
    """aten::_cufft_get_plan_cache_size: the number of plans that are cached."""
    return _cache(dispatch, call.args[0]).size


def max_size(dispatch: Dispatch, call: Call) -> int:
    """aten::_cufft_get_plan_cache_max_size: how many plans may be cached."""
    return _cache(dispatch, call.args[0]).max_size


def set_max_size(dispatch: Dispatch, call: Call) -> None:
    """aten::_cufft_set_plan_cache_max_size: change it; the plans used longest ago go first."""
    _cache(dispatch, call.args[0]).max_size = call.args[1]


def clear(dispatch: Dispatch, call: Call) -> None:
    """aten::_cufft_clear_plan_cache."""
    _cache(dispatch, call.args[0]).clear()


def transform(dispatch: Dispatch, call: Call) -> object:
    """A Fourier transform: on a device it looks its plan up, by geometry and precision as cuFFT's key does."""
    args = call.args
    tensor, dimensions = args[:2]
    device = tag_of(tensor).device
    if device >= 0 and (dispatch.local.half or tensor.dtype in HALVES):
        _check_sizes(tensor, dimensions, args[3] if call.plan.name == ONE_SIDED else None)
        if tensor.dtype in HALVES:
            return _widened(dispatch, call)
    if device >= 0 and not any(tag_of(t).device != device for t in args if isinstance(t, torch.Tensor)):
        lengths = tuple(tensor.shape[d] for d in dimensions)
        key = (call.plan.name, tuple(tensor.shape), tuple(tensor.stride()), tuple(dimensions), tensor.dtype, *args[3:])
        # A plan keeps a work area of the size of its transform when a length is not a product of small primes.
        work = 0 if all(_smooth(n) for n in lengths) else math.prod(tensor.shape) * tensor.element_size()
        found = dispatch.machine.devices[device]
        if key not in found.plan_cache:
            handles.refuse(dispatch.state, CUFFT, device)
        if not found.plan_cache.use(key, work) and key in found.plan_cache:
            found.driver.occupied_bytes += work
        if any(stride == 0 and n > 1 for stride, n in zip(tensor.stride(), tensor.shape, strict=True)):
            # The CPU's library refuses what repeats an element; cuFFT's wrapper copies it, as is done here.
            args = (tensor.contiguous(), *args[1:])
            dispatch.tag(args[0], device)
    return dispatch.general(call.but(args=args))


def primitive(dispatch: Dispatch, call: Call) -> object:
    """prims::fft_c2c and the like, in which PyTorch's references are written."""
    if device_of(call.args[0]) >= 0 and call.args[0].dtype in HALVES:
        _check_sizes(call.args[0], call.kwargs["dim"], call.kwargs.get("last_dim_size"))
        return _widened(dispatch, call)
    return dispatch.general(call)


def _check_sizes(tensor: torch.Tensor, dimensions: Iterable[int], last: int | None) -> None:
    sizes = [tensor.shape[d] for d in dimensions]
    if last is not None:
        sizes[-1] = last
    if any(size & (size - 1) for size in sizes):
        raise RuntimeError(POWERS_OF_TWO.format(sizes))


def _widened(dispatch: Dispatch, call: Call) -> torch.Tensor:
    tensor, *others = call.args
    with dispatch.parts:
        wide: Result = call.func(tensor.to(HALVES[tensor.dtype]), *others, **call.kwargs)
        out: torch.Tensor = wide.to(BACK[wide.dtype])
        return out


def _smooth(number: int) -> bool:
    for prime in (2, 3, 5, 7):
        while number and number % prime == 0:
            number //= prime
    return number <= 1


def real_to_complex(self: torch.Tensor, dim: list[int], normalization: int, onesided: bool) -> torch.Tensor:
    """aten::_fft_r2c, whose result lies as cuFFT leaves it where it transforms the first two dimensions too.

    It then transforms the last of `dim` alone, and up to three others at a time, those that lie closest last
    (`_fft_r2c_cufft` and `_exec_fft` of aten/src/ATen/native/cuda/SpectralOps.cpp).
    """
    out: torch.Tensor = torch.ops.aten._fft_r2c.default._op(self, dim, normalization, onesided)
    if tuple(dim[:2]) != (0, 1):
        return out
    left = [*dim]
    strides, batch = self.stride(), [left.pop()]
    while batch:
        others = sorted((d for d in range(out.dim()) if d not in batch), key=lambda d: -strides[d])
        order = [*others, *batch]
        laid = torch.empty([out.shape[d] for d in order], dtype=out.dtype, device="meta")
        strides = laid.permute([order.index(d) for d in range(out.dim())]).stride()
        left.sort(key=lambda d: -strides[d])
        left, batch = left[:-3], left[-3:]
    return out.permute(order).contiguous().permute([order.index(d) for d in range(out.dim())])


RUN = {"aten::_fft_r2c": real_to_complex}
HANDLERS = {
    "aten::_cufft_get_plan_cache_size": size,
    "aten::_cufft_get_plan_cache_max_size": max_size,
    "aten::_cufft_set_plan_cache_max_size": set_max_size,
    "aten::_cufft_clear_plan_cache": clear,
    "aten::_fft_r2c": transform,
    "aten::_fft_c2r": transform,
    "aten::_fft_c2c": transform,
    "prims::fft_r2c": primitive,
    "prims::fft_c2r": primitive,
    "prims::fft_c2c": primitive,
}
"""Operators with handlers of their own."""
