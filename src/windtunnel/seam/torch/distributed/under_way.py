"""Collectives of NCCL that are under way while their host goes on, where another backend's calls may come between.

In a group of two backends ("cpu:gloo,cuda:nccl") one rank may call NCCL first and another rank gloo: on hardware that
is no deadlock, since NCCL's call does not hold up the host. So such a call is carried by a thread of its own. Its
caller goes on until it does anything else on a device, or asks a device; then the collective is put on its stream, as
if nothing had come between.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch

from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.tags import CPU, device_of

if TYPE_CHECKING:
    from windtunnel.seam.torch.dispatch.mode import Dispatch
    from windtunnel.seam.torch.distributed.watch import Watch
    from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Types
    from windtunnel.seam.torch.state.core import Core

COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
"""Namespaces of operators whose handlers know themselves whether they wait."""


class CarriedGroup(Protocol):
    """What is asked of a process group here: the latest of its calls that a thread carries."""

    last: UnderWay | None


class UnderWay:
    """A collective that a thread carries: `carry` meets the other ranks and returns when all are ready.

    `finish` puts it on its stream; what is in `then` comes after that. `written` are the tensors that get its values.
    """

    def __init__(
        self,
        group: CarriedGroup,
        entry: int,
        carry: Callable[[], int],
        finish: Callable[[int], None],
        written: list[torch.Tensor],
    ) -> None:
        self.entry = entry
        self.finish = finish
        self.written = {tensor.untyped_storage()._cdata for tensor in written}
        self.then: list[Callable[[], object]] = []
        self.thread = threading.get_ident()
        self._carry = carry
        self._ready_ns = 0
        self._error: BaseException | None = None
        self._before, group.last = group.last, self
        self._done = _thread.allocate_lock()
        self._done.acquire()
        self._inference = torch.is_inference_mode_enabled()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            before.arrive()
        try:
            with torch.inference_mode(self._inference), torch.no_grad():
                self._ready_ns = self._carry()
        except BaseException as error:  # noqa: BLE001  raised again where the caller's thread waits
            self._error = error
        self._done.release()

    def arrive(self) -> None:
        """Wait until its values are there."""
        with self._done:
            pass

    def ready_ns(self) -> int:
        """Wait for it: when the last rank was ready."""
        self.arrive()
        if self._error is not None:
            raise self._error
        return self._ready_ns


class Journeys:
    """All that is under way in this process, in the order of the calls."""

    def __init__(self, watcher: Watch, core: Core) -> None:
        self._watcher = watcher
        self._core = core
        self.begun: list[UnderWay] = []
        self._stock: Callable[..., object] | None = None

    def add(self, dispatch: Dispatch, one: UnderWay) -> None:
        """From now on every operator is looked at."""
        self.begun.append(one)
        if self._stock is None:
            self._watch(dispatch)

    def finish(self, everybody: bool = False) -> None:
        """Wait for what this thread, or any, has under way, and put it on its stream."""
        me = threading.get_ident()
        while self.begun and (mine := next((one for one in self.begun if everybody or one.thread == me), None)):
            self.begun.remove(mine)
            if not self.begun:
                self._unwatch()
            with self._watcher.waiting(mine.entry):
                ready_ns = mine.ready_ns()
            mine.finish(ready_ns)
            for follow in mine.then:
                follow()

    def forget(self) -> None:
        """In a forked child, which has none of the threads that carry them."""
        self.begun.clear()
        self._unwatch()

    def meet(self, func: OpOverload, args: Arguments, kwargs: Keywords | None) -> None:
        """An operator is about to run: wait first where it is on a device, or is given what another thread awaits."""
        if func.namespace in COLLECTIVES:
            return
        tensors = tensors_in((*args, *(kwargs or {}).values()))
        if any(device_of(tensor) != CPU for tensor in tensors) or _on_device((kwargs or {}).get("device")):
            self.finish()
        if self.begun:
            touched = {tensor.untyped_storage()._cdata for tensor in tensors if tensor.layout is torch.strided}
            for one in self.begun:
                if touched & one.written:
                    one.arrive()

    def _watch(self, dispatch: Dispatch) -> None:
        kind = _base(dispatch)
        stock = self._stock = kind.__torch_dispatch__

        def watched(
            mode: Dispatch, func: OpOverload, types: Types, args: Arguments = (), kwargs: Keywords | None = None
        ) -> object:
            self.meet(func, args, kwargs)
            return stock(mode, func, types, args, kwargs)

        self._kind, self._core.under_way = kind, self
        kind.__torch_dispatch__ = watched  # type: ignore[method-assign, assignment]

    def _unwatch(self) -> None:
        if self._stock is not None:
            self._kind.__torch_dispatch__ = self._stock  # type: ignore[method-assign]
            self._stock = self._core.under_way = None


def _base(dispatch: Dispatch) -> type[Dispatch]:
    """The class of all threads' modes, beneath those that watch single ones."""
    return next(kind for kind in type(dispatch).__mro__ if kind.__name__ == "Dispatch")


def _on_device(device: object) -> bool:
    return device is not None and not str(device).startswith(("cpu", "meta"))
