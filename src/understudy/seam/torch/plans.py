"""cuFFT plans: the cache per device behind `torch.backends.cuda.cufft_plan_cache`, fed by the transforms themselves."""

from __future__ import annotations

import math
from typing import Any

import torch

from understudy.machine.plan_cache import PlanCache
from understudy.seam.torch.dispatch import Dispatch
from understudy.seam.torch.operators import Plan
from understudy.seam.torch.tags import tag_of


def _cache(dispatch: Dispatch, index: int) -> PlanCache:
    state = dispatch.state
    torch.cuda._lazy_init()
    count = len(state.machine.devices)
    if not 0 <= index < count:
        raise RuntimeError(f"cufft_plan_cache: expected 0 <= device index < {count}, but got device with index {index}")
    return state.device(index).plan_cache


def size(dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """aten::_cufft_get_plan_cache_size: the number of plans that are cached."""
    return _cache(dispatch, args[0]).size


def max_size(dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """aten::_cufft_get_plan_cache_max_size: how many plans may be cached."""
    return _cache(dispatch, args[0]).max_size


def set_max_size(dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """aten::_cufft_set_plan_cache_max_size: change it; the plans used longest ago go first."""
    _cache(dispatch, args[0]).max_size = args[1]


def clear(dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """aten::_cufft_clear_plan_cache."""
    _cache(dispatch, args[0]).clear()


def transform(dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A Fourier transform: on a device it looks its plan up, by geometry and precision as cuFFT's key does."""
    tensor, dimensions = args[:2]
    device = tag_of(tensor).device
    if device >= 0 and not any(tag_of(t).device != device for t in args if isinstance(t, torch.Tensor)):
        lengths = tuple(tensor.shape[d] for d in dimensions)
        key = (plan.name, tuple(tensor.shape), tuple(tensor.stride()), tuple(dimensions), tensor.dtype, *args[3:])
        # A plan keeps a work area of the size of its transform when a length is not a product of small primes.
        work = 0 if all(_smooth(n) for n in lengths) else math.prod(tensor.shape) * tensor.element_size()
        found = dispatch.machine.devices[device]
        if not found.plan_cache.use(key, work) and key in found.plan_cache:
            found.driver.occupied_bytes += work
        if any(stride == 0 and n > 1 for stride, n in zip(tensor.stride(), tensor.shape, strict=True)):
            # The CPU's library refuses what repeats an element; cuFFT's wrapper copies it, as is done here.
            args = (tensor.contiguous(), *args[1:])
            dispatch.tag(args[0], device)
    return dispatch.general(plan, func, args, kwargs)


def _smooth(number: int) -> bool:
    for prime in (2, 3, 5, 7):
        while number and number % prime == 0:
            number //= prime
    return number <= 1


HANDLERS = {
    "aten::_cufft_get_plan_cache_size": size,
    "aten::_cufft_get_plan_cache_max_size": max_size,
    "aten::_cufft_set_plan_cache_max_size": set_max_size,
    "aten::_cufft_clear_plan_cache": clear,
    "aten::_fft_r2c": transform,
    "aten::_fft_c2r": transform,
    "aten::_fft_c2c": transform,
}
"""Operators that `Dispatch` hands on whole."""
