"""Futures of collectives: their callbacks run on a stream of their own after the collective, as CUDAFuture's do.

`c10::ivalue::Future` takes a stream from PyTorch's pool for each callback, makes it wait for the events of the value,
and makes the current stream wait in `wait` (ATen/core/ivalue_inl.h). DistributedDataParallel waits for the futures of
its communication hooks when backward ends, so a hook that compresses overlaps with backward as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from understudy.machine.stream import Event, Stream
from understudy.seam.patching import Patch
from understudy.seam.torch.distributed.groups import Groups
from understudy.seam.torch.distributed.work import CALLS
from understudy.seam.torch.operators.plan import tensors_in
from understudy.seam.torch.tags import tag_of


def functions(groups: Groups) -> list[Patch]:
    """What makes futures of collectives in C++, and what waits for several."""
    reducer: Any = dist.Reducer  # type: ignore[attr-defined]
    stock_run, stock_collect = reducer._run_allreduce_hook, torch._C._collect_all
    stock_register = dist._register_comm_hook  # type: ignore[attr-defined]

    def run_allreduce_hook(self: object, bucket: object) -> object:
        with CALLS.watched() as found:
            future = stock_run(self, bucket)
        queued = found[0]
        return future if queued is None or queued.event is None else groups.future(future.value(), queued.event)

    def collect_all(futures: list[Any]) -> object:
        for future in futures:
            if isinstance(future, groups.future):
                future.arrive()
        return stock_collect(futures)

    def register_comm_hook(self: Any, state: Any, hook: Callable[..., object]) -> None:
        stock_register(self, state, _awaited(hook, groups))

    return [
        Patch(dist, "_register_comm_hook", register_comm_hook),
        Patch(reducer, "_run_allreduce_hook", run_allreduce_hook),
        Patch(torch._C, "_collect_all", collect_all),
        Patch(torch.nn.parallel.DistributedDataParallel, "_register_builtin_comm_hook", _register_builtin),
    ]


def _awaited(hook: Callable[..., object], groups: Groups) -> Callable[..., object]:
    """A communication hook whose future is waited for when backward ends, as C++'s reducer does."""

    @functools.wraps(hook)
    def awaited(state: object, bucket: object) -> object:
        future = hook(state, bucket)
        if isinstance(future, groups.future):
            if torch._C._current_autograd_node() is None:  # a static graph's first step: the reducer waits next
                future.arrive()
            else:
                groups.wait_when_backward_ends(future._us_event)
        return future

    return awaited


def _register_builtin(self: Any, kind: Any) -> None:
    """The hooks that C++ has, in Python, whose streams the emulation sees."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    kinds: Any = dist.BuiltinCommHookType  # type: ignore[attr-defined]
    hooks = {kinds.ALLREDUCE: default_hooks.allreduce_hook, kinds.FP16_COMPRESS: default_hooks.fp16_compress_hook}
    self.logger._set_comm_hook_name(str(kind))
    dist._register_comm_hook(self.reducer, self.process_group, hooks[kind])  # type: ignore[attr-defined]


def future_class(groups: Groups) -> Any:
    """The class of a future that has its value, ready on the device after an event."""

    class Future(torch.futures.Future[Any]):
        """torch.futures.Future of a collective on emulated devices."""

        def __init__(self, value: object, event: Event) -> None:
            super().__init__()
            self._us_event = event
            self.set_result(value)

        def arrive(self) -> None:
            """Make the current stream wait."""
            groups.wait(self._us_event)

        def wait(self) -> Any:
            self.arrive()
            return super().wait()

        def then(self, callback: Callable[[Any], object]) -> Any:
            done: list[tuple[Any, Event]] = []

            def run(_: object) -> Any:
                with _aside(groups, self._us_event) as stream:
                    _record(groups, self.value(), stream)
                    result = callback(self)
                    done.append((result, groups.mark(stream, 0)))
                return result

            inner = super().then(run)  # at once, on this thread; an error stays in `inner`
            return Future(*done[0]) if done else inner

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
        if tag.device == stream.device and tag.block is not None:
            groups.state.device(tag.device).allocator.record_stream(tag.block, stream.index)
