"""What collectives return: a Work whose `wait` makes the current stream wait, as NCCL's does, and not the host."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.distributed as dist

from windtunnel.machine.stream import Event
from windtunnel.seam.torch.distributed import completion_hooks
from windtunnel.seam.torch.distributed.groups import MILLISECOND, Groups, Queued
from windtunnel.seam.torch.distributed.values import Reduces, factor_of

if TYPE_CHECKING:
    from windtunnel.seam.torch.distributed.values import Reduction

METHODS = (
    "allreduce", "allreduce_coalesced", "broadcast", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "all_gather_single", "all_gather_single_coalesced", "reduce_scatter",
    "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "reduce", "gather", "scatter", "alltoall", "alltoall_base", "all_to_all_single",
    "barrier", "send", "recv", "recv_anysource",
)  # fmt: skip
"""Methods of `ProcessGroup` that return a Work, in one version of PyTorch or another."""
SUCCESS = 0
"""`WorkResult::SUCCESS` (torch/csrc/distributed/c10d/Work.hpp)."""


class Calls(threading.local):
    """The collective that this thread has just queued, on its way from the operator's handler to the method's caller.

    `depth` tells whether a method of ours is on the stack; C++ that calls collectives itself has none. `reduces`: how
    what the method sends is reduced. `together` collects what a coalescing manager puts together, `batch` is its
    number, 0 outside of one.
    """

    depth = 0
    reduces = Reduces()
    queued: Queued | None = None
    together: list[Waiting] | None = None
    batch = 0

    @contextmanager
    def watched(self) -> Iterator[list[Queued | None]]:
        """Catch the collective that is queued meanwhile, the list's one item at the end; its caller will wait."""
        found: list[Queued | None] = []
        before, self.queued = self.queued, None
        self.depth += 1
        try:
            yield found
            found.append(self.queued)
        finally:
            self.depth -= 1
            self.queued = before


CALLS = Calls()


def methods(groups: Groups) -> dict[str, Callable[..., object]]:
    """Wrappers of the methods that return a Work."""
    work_class = _work_class(groups)

    def wrap(name: str) -> Callable[..., object]:
        stock: Callable[..., dist.Work | None] = getattr(dist.ProcessGroup, name)

        @functools.wraps(stock)
        def method(self: dist.ProcessGroup, *args: object, **kwargs: object) -> object:
            with CALLS.watched() as found, _as_sum((*args, *kwargs.values())):
                work = stock(self, *args, **kwargs)
            queued = found[0]
            if queued is None or work is None:
                return work
            group = groups.by_name.get(self.group_name)
            if group is not None and group.completions is not None:
                group.completions.tell(groups.state.local.host.now_ns)
            made = work_class(work, queued)
            if CALLS.together is not None:
                CALLS.together.append(made)
            return made

        return method

    found = {name: wrap(name) for name in METHODS if hasattr(dist.ProcessGroup, name)}
    return found | _coalescing(groups, work_class) | completion_hooks.methods(groups)


def _coalescing(groups: Groups, work_class: Callable[..., Waiting]) -> dict[str, Callable[..., object]]:
    """What `torch.distributed._coalescing_manager` calls: one Work for all collectives between start and end."""
    stock_start, stock_end = dist.ProcessGroup._start_coalescing, dist.ProcessGroup._end_coalescing

    def start(self: dist.ProcessGroup, device: torch.device) -> None:
        known = groups.by_name.get(self.group_name)
        if known is None or not known.nccl:
            stock_start(self, device)
        else:
            known.numbers.start()
            CALLS.together = []
            CALLS.batch = groups.state.machine.number(groups.state.local.host)

    def end(self: dist.ProcessGroup, device: torch.device) -> object:
        if CALLS.together is None:
            return stock_end(self, device)
        works, CALLS.together, CALLS.batch = CALLS.together, None, 0
        groups.by_name[self.group_name].coalesced()
        return work_class(None, Queued(None), works)

    return {"_start_coalescing": start, "_end_coalescing": end}


@contextmanager
def _as_sum(arguments: Iterable[object]) -> Iterator[None]:
    """Ask for a sum where the program asks for an average or a premultiplied sum, which gloo has not.

    Gloo has averages in some versions of PyTorch alone.
    """
    for asked in arguments:
        if hasattr(asked, "reduceOp"):
            break
    else:
        asked = None
    operation: Reduction | None = next(filter(_is_reduction, arguments), None) if asked is None else asked.reduceOp
    factor = factor_of(asked) if operation == dist.ReduceOp.PREMUL_SUM else None
    mean = asked is not None and operation == dist.ReduceOp.AVG
    before, CALLS.reduces = CALLS.reduces, Reduces(operation)
    if mean or factor is not None:
        asked.reduceOp = dist.ReduceOp.SUM
        CALLS.reduces = Reduces(dist.ReduceOp.SUM, mean, factor)
    try:
        yield
    finally:
        CALLS.reduces = before
        if asked is not None:
            asked.reduceOp = operation


def _is_reduction(value: object) -> TypeGuard[Reduction]:
    return isinstance(value, (dist.ReduceOp, dist.ReduceOp.RedOpType))


class Waiting:
    """What a Work of emulated devices does in place of gloo's."""

    _groups: Groups
    _inner: dist.Work
    _queued: Queued
    _others: Sequence[Waiting]

    @property
    def timeout(self) -> timedelta | None:
        """How long NCCL lets it take; None where NCCL does not say."""
        return self._queued.timeout

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Make the current stream wait; for a barrier, and for tensors of the host, the host waits."""
        for other in self._others:
            other.wait(timeout)
        queued = self._queued
        queued.waited = True
        if queued.under_way is not None:
            if timeout is None:
                queued.under_way.then.append(self.wait)
                return True
            self._groups.journeys.finish()
        if queued.finish is not None:
            queued.settle(timeout)
        if queued.event is not None:
            self._groups.wait(queued.event)
            queued.tensors = ()
            if queued.host or timeout is not None:
                self._host_waits(queued.event, timeout)
        return True

    def _arrived(self) -> Queued:
        """Wait until it is on its stream."""
        if self._queued.under_way is not None:
            self._groups.journeys.finish()
        return self._queued

    def _host_waits(self, event: Event, timeout: timedelta | None) -> None:
        """Let the host wait, for so long at most.

        Raises:
            DistBackendError: the collective takes longer than `timeout`.
        """
        groups, group, call = self._groups, self._queued.group, self._queued.call
        machine, host = groups.state.machine, groups.state.local.host
        left_ns = (event.time_ns or 0) - host.now_ns
        limit_ms = -1 if timeout is None else int(timeout / MILLISECOND)
        if group is not None and call is not None and 0 <= limit_ms * 1_000_000 < left_ns:
            host.advance(limit_ms * 1_000_000)
            raise groups.watch.overdue(group.channel, call, limit_ms)
        machine.synchronize_event(host, event, groups.state.site())

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """The same as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the devices are done with it, on the modelled clock."""
        queued = self._arrived()
        if queued.finish is not None:
            return bool(self._inner.is_completed())
        if not all(other.is_completed() for other in self._others):
            return False
        if queued.event is None:
            return True
        done = self._groups.state.machine.query_event(self._groups.state.local.host, queued.event)
        queued.waited |= done
        return done

    def is_success(self) -> bool:
        """Whether it is done without an error."""
        return self.is_completed()

    def exception(self) -> object:
        """The error that ended it; None here, since errors are raised where the collective is called."""
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors that it wrote."""
        self._arrived()
        self.wait()
        return list(self._inner.result())

    def source_rank(self) -> int:
        """The rank that sent what was received."""
        return int(self._inner._source_rank())

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[object]:
        """A future of the tensors that it wrote: its callbacks run on a stream of their own, when that is ready."""
        queued = self._arrived()
        if queued.event is None:
            self.wait()
            return self._inner.get_future()
        queued.waited = True
        return self._groups.future(self._inner.get_future().value(), queued.event)

    def get_future_result(self) -> object:
        """A future of the outcome: `WorkResult.SUCCESS`, since errors are raised where the collective is called."""
        self.wait()
        found: torch.futures.Future[object] = torch.futures.Future()
        found.set_result(SUCCESS)
        return found

    def _get_duration(self) -> float:
        """How long it takes on the device, in milliseconds, where collectives are timed."""
        queued = self._arrived()
        if queued.group is None or not queued.group.settings.timing or queued.event is None:
            raise RuntimeError("getDuration only works if timing was enabled")
        return ((queued.event.time_ns or 0) - queued.began_ns) / 1e6


def _work_class(groups: Groups) -> Callable[..., Waiting]:
    class Work(Waiting, dist.Work):
        """torch.distributed.Work of a collective on emulated devices."""

        def __init__(self, inner: dist.Work, queued: Queued, others: Sequence[Waiting] = ()) -> None:
            dist.Work.__init__(self)
            self._groups = groups
            self._inner = inner
            self._queued = queued
            self._others = others

        def __del__(self) -> None:
            queued = self._queued
            if queued.tensors or not queued.waited or queued.under_way is not None:
                groups.dropped(queued)

    return Work
