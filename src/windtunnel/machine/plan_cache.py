"""PyTorch's cache of cuFFT plans: least recently used, one a device, as `torch.backends.cuda.cufft_plan_cache` shows.

Source: ATen/native/cuda/CuFFTPlanCache.h. A plan's work area lives in device memory while the plan is cached; the
owner allocates it and hears of evictions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

MAX_PLANS = 4096
OLD_CUDA_MAX_PLANS = 1023
"""cuFFT before CUDA 10 allowed at most 1024 plans alive at once; one is kept for the plan in use."""

_LARGEST = (1 << 63) - 1


class PlanCache:
    """Cached plans of one device.

    `max_size` is the number of plans that may be cached: 4096 by default, and at most 1023 where the CUDA version is
    older than 10. `hits`, `misses` and `evictions` count uses; `plan_bytes` is the sum of the cached plans' sizes.
    `on_evict` is called with (key, plan bytes) for every plan that leaves the cache.
    """

    def __init__(
        self,
        cuda_version: tuple[int, int] = (11, 2),
        on_evict: Callable[[Hashable, int], None] | None = None,
    ) -> None:
        self._limit = _LARGEST if cuda_version >= (10, 0) else OLD_CUDA_MAX_PLANS
        self._max_size = min(MAX_PLANS, self._limit)
        self._plans: OrderedDict[Hashable, int] = OrderedDict()
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self.plan_bytes = 0
        self.on_evict = on_evict

    @property
    def size(self) -> int:
        """Number of plans in the cache."""
        return len(self._plans)

    @property
    def max_size(self) -> int:
        """Number of plans that may be cached; 0 turns the cache off. Setting it drops the plans used longest ago."""
        return self._max_size

    @max_size.setter
    def max_size(self, count: int) -> None:
        if count < 0:
            raise RuntimeError(f"cuFFT plan cache size must be non-negative, but got {count}")
        if count > self._limit:
            raise RuntimeError(f"cuFFT plan cache size can not be larger than {self._limit}, but got {count}")
        self._max_size = count
        self._shrink(count)

    def use(self, key: Hashable, plan_bytes: int = 0) -> bool:
        """Look a plan up, and cache one of `plan_bytes` bytes when it is not there; True when it was."""
        if key in self._plans:
            self._plans.move_to_end(key)
            self.hits += 1
            return True
        self.misses += 1
        if self._max_size == 0:
            return False
        self._shrink(self._max_size - 1)
        self._plans[key] = plan_bytes
        self.plan_bytes += plan_bytes
        return False

    def clear(self) -> None:
        """Drop every plan; the counts of uses stay."""
        self._shrink(0, counted=False)

    def _shrink(self, count: int, counted: bool = True) -> None:
        while len(self._plans) > count:
            key, plan_bytes = self._plans.popitem(last=False)
            self.plan_bytes -= plan_bytes
            self.evictions += counted
            if self.on_evict is not None:
                self.on_evict(key, plan_bytes)

    def __contains__(self, key: object) -> bool:
        return key in self._plans
