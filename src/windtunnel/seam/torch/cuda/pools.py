"""Memory pools of their own: `torch.cuda.MemPool`, `use_mem_pool` and the pools of CUDA graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NoReturn

import torch

from windtunnel.errors import UnsupportedError, UsageError
from windtunnel.machine.memory.blocks import PoolId
from windtunnel.seam.patching import Patch

if TYPE_CHECKING:
    from windtunnel.seam.torch.state.state import State

C = torch._C


def patches(state: State) -> list[Patch]:
    """The pools' functions, under every name that PyTorch's modules hold them by."""
    cuda = torch.cuda
    functions = _functions(state)
    pool = _pool_class(state)
    found = [Patch(C, name, value) for name, value in functions.items()]
    for module in (cuda.memory, cuda.graphs):
        found += [Patch(module, name, value) for name, value in functions.items() if hasattr(module, name)]
    found += [Patch(cuda.memory, "_MemPool", pool), Patch(C, "_MemPool", pool), Patch(cuda.memory, "MemPool", pool)]
    if hasattr(cuda.memory, "MemPoolContext"):  # PyTorch 2.6
        found += [Patch(module, "MemPoolContext", PoolContext) for module in (cuda, cuda.memory)]
    return [*found, Patch(cuda, "MemPool", pool)]


class PoolContext:
    """`torch.cuda.MemPoolContext` of PyTorch 2.6: makes a pool the active one while it lives."""

    _active: ClassVar[list[object]] = []

    def __init__(self, pool: object) -> None:
        self._pool = pool
        self._active.append(pool)

    @staticmethod
    def active_pool() -> object:
        """The pool of the newest context that lives; None without one."""
        return PoolContext._active[-1] if PoolContext._active else None

    def __del__(self) -> None:
        if self._pool in self._active:
            self._active.remove(self._pool)


def _functions(state: State) -> dict[str, Callable[..., object]]:
    def begin(index: int, pool_id: PoolId, streams: Callable[[int], bool] | None) -> None:
        device = state.device(index)
        state.drain(device)
        try:
            device.allocator.begin_allocate_to_pool(_number(pool_id), streams)
        except UsageError as error:
            raise RuntimeError(str(error)) from None

    def begin_thread(index: int, pool_id: PoolId) -> None:
        thread = threading.get_ident()
        begin(index, pool_id, lambda stream: threading.get_ident() == thread)

    def begin_stream(index: int, pool_id: PoolId) -> None:
        number = state.local.streams[index].index
        begin(index, pool_id, lambda asked: asked == number)

    def end(index: int, pool_id: PoolId) -> None:
        device = state.device(index)
        state.drain(device)
        try:
            device.allocator.end_allocate_to_pool(_number(pool_id))
        except UsageError as error:
            raise RuntimeError(str(error)) from None

    return {
        "_cuda_getCheckpointState": _refuse_checkpoint,
        "_cuda_setCheckpointPoolState": _refuse_checkpoint,
        "_graph_pool_handle": lambda: (0, next(state.pool_numbers)),
        "_cuda_beginAllocateToPool": lambda index, pool_id: begin(index, pool_id, None),
        "_cuda_beginAllocateCurrentThreadToPool": begin_thread,
        "_cuda_beginAllocateCurrentStreamToPool": begin_stream,
        "_cuda_endAllocateToPool": end,
        "_cuda_endAllocateCurrentStreamToPool": end,
        "_cuda_releasePool": lambda index, pool_id: state.device(index).allocator.release_pool(_number(pool_id)),
        "_cuda_checkPoolLiveAllocations": lambda index, pool_id, expected: (
            _live(state, index, pool_id) == set(expected)
        ),
    }


def _refuse_checkpoint(*_: object) -> NoReturn:
    raise UnsupportedError(
        "the state of an allocator's private pool cannot be saved or restored here: only torch.compile's graph trees "
        "do that, and compiled functions run eagerly on emulated GPUs; leave the checkpoint out"
    )


def _number(pool_id: Sequence[int]) -> PoolId:
    return int(pool_id[0]), int(pool_id[1])


def _live(state: State, index: int, pool_id: PoolId) -> set[int]:
    device = state.device(index)
    state.drain(device)
    segments = device.allocator.snapshot(_number(pool_id))["segments"]
    return {block["address"] for segment in segments for block in segment["blocks"] if block["state"] != "inactive"}


def _pool_class(state: State) -> type:
    class MemPool:
        """`torch.cuda.MemPool`: a pool that allocations inside `use_mem_pool` come from, on the device it was made on.

        `allocator` may be given and is kept; memory comes from the emulated driver all the same.
        """

        def __init__(
            self, allocator: object = None, use_on_oom: bool = False, no_split: bool = False, symmetric: bool = False
        ) -> None:
            torch.cuda._lazy_init()
            self._allocator = allocator
            self._id: PoolId = (0, next(state.pool_numbers))
            self._device = state.device(state.local.device)
            self._device.allocator.create_pool(self._id)
            self._device.allocator.set_pool_options(self._id, use_on_oom, no_split)

        @property
        def id(self) -> PoolId:
            """The pool's number, as (0, n)."""
            return self._id

        @property
        def allocator(self) -> object:
            """The allocator that was given."""
            return self._allocator

        def use_count(self) -> int:
            """How many users the pool has: this object, and the scopes that are open."""
            return self._device.allocator.pool_use_count(self._id)

        def snapshot(self, include_traces: bool = True) -> object:
            """The segments of this pool."""
            return state.history.snapshot((*self._id, include_traces))["segments"]

        def __del__(self) -> None:
            device = getattr(self, "_device", None)
            if device is None:
                return
            state.drain(device)
            device.allocator.release_pool(self._id)
            device.allocator.empty_cache(self._id)

    return MemPool
