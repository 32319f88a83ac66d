"""Futures of collectives: their callbacks run on a stream of their own after the collective, as CUDAFuture's do.

`c10::ivalue::Future` takes a stream from PyTorch's pool for each callback, makes it wait for the events of the value,
and makes the current stream wait in `wait` (ATen/core/ivalue_inl.h). DistributedDataParallel waits for the futures of
its communication hooks when backward ends, so a hook that compresses overlaps with backward as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from windtunnel.machine.memory.blocks import Block
from windtunnel.machine.stream import Event, Stream
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.distributed.groups import DeviceFuture, Groups
from windtunnel.seam.torch.distributed.work import CALLS
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.tags import tag_of

if TYPE_CHECKING:
    from torch._C._distributed_c10d import BuiltinCommHookType, GradBucket, Reducer

    Hook = Callable[[object, GradBucket], object]
    """A communication hook: its state and a bucket of gradients to a future of the bucket's tensor."""

S = TypeVar("S")


def functions(groups: Groups) -> list[Patch]:
    """What makes futures of collectives in C++, and what waits for several."""
    reducer: type[Reducer] = dist.Reducer  # type: ignore[attr-defined]
    stock_run: Callable[..., torch.futures.Future[object]] = reducer._run_allreduce_hook  # type: ignore[attr-defined]
    stock_collect = torch._C._collect_all
    stock_register = dist._register_comm_hook  # type: ignore[attr-defined]
    stock_handle: Callable[..., None] = reducer._set_forward_pass_work_handle
    handles: WeakKeyDictionary[Reducer, object] = WeakKeyDictionary()

    def run_allreduce_hook(self: Reducer, bucket: GradBucket) -> object:
        with CALLS.watched() as found:
            future = stock_run(self, bucket)
        queued = found[0]
        return future if queued is None or queued.event is None else groups.future(future.value(), queued.event)

    def collect_all(futures: list[torch._C.Future[object]]) -> object:
        for future in futures:
            if isinstance(future, groups.future):
                future.arrive()
        return stock_collect(futures)

    def register_comm_hook(self: Reducer, state: object, hook: Hook) -> None:
        stock_register(self, state, _awaited(hook, groups))

    def set_forward_pass_work_handle(self: Reducer, work: object, use_static_world_size: bool) -> None:
        handles[self] = work  # the reducer keeps the C++ part of it alone, whose `wait` would never return
        stock_handle(self, work, use_static_world_size)

    return [
        Patch(dist, "_register_comm_hook", register_comm_hook),
        Patch(reducer, "_set_forward_pass_work_handle", set_forward_pass_work_handle),
        Patch(reducer, "_run_allreduce_hook", run_allreduce_hook),
        Patch(torch._C, "_collect_all", collect_all),
        Patch(torch.nn.parallel.DistributedDataParallel, "_register_builtin_comm_hook", _register_builtin),
    ]


def _awaited(hook: Hook, groups: Groups) -> Hook:
    """A communication hook whose future is waited for when backward ends, as C++'s reducer does."""

    @functools.wraps(hook)
    def awaited(state: object, bucket: GradBucket) -> object:
        future = hook(state, bucket)
        if isinstance(future, groups.future):
            if torch._C._current_autograd_node() is None:  # a static graph's first step: the reducer waits next
                future.arrive()
            else:
                groups.wait_when_backward_ends(future._wt_event)
        return future

    return awaited


def _register_builtin(self: torch.nn.parallel.DistributedDataParallel, comm_hook_type: BuiltinCommHookType) -> None:
    """The hooks that C++ has, in Python, whose streams the emulation sees."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    kinds = dist.BuiltinCommHookType  # type: ignore[attr-defined]
    hooks = {kinds.ALLREDUCE: default_hooks.allreduce_hook, kinds.FP16_COMPRESS: default_hooks.fp16_compress_hook}
    if self.logger is not None:
        self.logger._set_comm_hook_name(str(comm_hook_type))
    dist._register_comm_hook(self.reducer, self.process_group, hooks[comm_hook_type])  # type: ignore[attr-defined]


def future_class(groups: Groups) -> type[DeviceFuture]:
    """The class of a future that has its value, ready on the device after an event."""

    class Future(DeviceFuture):
        """torch.futures.Future of a collective on emulated devices."""

        def arrive(self) -> None:
            """Make the current stream wait."""
            groups.wait(self._wt_event)

        def wait(self) -> object:
            self.arrive()
            return super().wait()

        def then(self, callback: Callable[[torch.futures.Future[object]], S]) -> torch.futures.Future[S]:
            done: list[tuple[S, Event]] = []

            def run(_: object) -> S:
                with _aside(groups, self._wt_event) as stream:
                    _record(groups, self.value(), stream)
                    result = callback(self)
                    done.append((result, groups.mark(stream, 0)))
                return result

            inner = super().then(run)  # at once, on this thread; an error stays in `inner`
            return Future(*done[0]) if done else inner  # type: ignore[return-value]  # a future of any value

    return Future


@contextmanager
def _aside(groups: Groups, event: Event) -> Iterator[Stream]:
    """A stream of the pool as the current one, after the event."""
    assert event.stream is not None
    device, streams = event.stream.device, groups.state.local.streams
    before, streams[device] = streams[device], groups.state.device(device).pool_stream()
    try:
        groups.wait(event)
        yield streams[device]
    finally:
        streams[device] = before


def _record(groups: Groups, value: object, stream: Stream) -> None:
    """The value's memory is kept until the callback's stream is done with it."""
    for tensor in tensors_in((value,)):
        tag = tag_of(tensor)
        if tag.device == stream.device and isinstance(tag.block, Block):
            groups.state.device(tag.device).allocator.record_stream(tag.block, stream.index)
