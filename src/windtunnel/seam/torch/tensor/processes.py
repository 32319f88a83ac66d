"""Child processes: what a fork inherits, what CUDA refuses to a forked child, and tensors that travel through queues.

A forked child is a process of its own: with CUDA untouched it starts with an empty trace, and once CUDA was used before
the fork, every use in the child fails as it does on a real GPU. Tensors of a device are shared between processes by
memory that both map, as CUDA's IPC handles do.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import NoReturn

import torch

from windtunnel.machine.stream import Stream
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import Storage, Tag, attach, bytes_in, storage_of
from windtunnel.trace.rows import Rows

_CURRENT: list[weakref.ref[State]] = []
"""The state of the emulation in force; CPython cannot take a fork hook back, so there is one for all emulations."""


def patches(state: State) -> list[Patch]:
    """How storages of devices are shared between processes; a fork from now on is told to the state."""
    if not _CURRENT:
        os.register_at_fork(after_in_child=_after_fork)
    _CURRENT[:] = [weakref.ref(state)]
    return _sharing(state)


def _after_fork() -> None:
    state = _CURRENT[0]()
    if state is None:
        return
    # What another thread of the parent held stays held for ever in the child.
    state.default_generator = threading.RLock()
    if state.under_way is not None:
        state.under_way.forget()
    machine = state.machine
    machine.turns.forked()
    trace = machine.trace
    trace.rows, trace.memory = Rows(), Rows()
    machine.turns.guard(trace.rows, trace.memory)
    state.history.forked(state.visible is None)
    trace.hazards.clear()
    trace.notes.clear()
    if state.visible is not None:
        state.bad_fork = True
        state.visible = None
        state.local.streams = NoStreams()
    else:
        state.process = os.getpid()


class NoStreams(list[Stream]):
    """The streams of a forked child whose parent had used CUDA: none, and CUDA says so."""

    def __getitem__(self, index: object) -> NoReturn:
        error = getattr(torch, "AcceleratorError", RuntimeError)
        raise error(
            "CUDA error: initialization error\n"
            "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might "
            "be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
        )


SENT_AGAIN = (
    "Attempted to send CUDA tensor received from another process; this is not currently supported. Consider cloning "
    "before sending."
)
"""`THPStorage_shareCuda` of torch/csrc/StorageSharing.cpp."""


class ReceivedTag(Tag):
    """Of memory that another process has sent."""

    __slots__ = ()


def _sharing(state: State) -> list[Patch]:
    def share(self: Storage) -> tuple[object, ...]:
        tag = self._wt
        if tag.device < 0:
            raise RuntimeError("_share_cuda_: only available on CUDA")
        torch.cuda._lazy_init()
        if isinstance(tag, ReceivedTag):
            raise RuntimeError(SENT_AGAIN)
        if self.nbytes() == 0:
            return tag.device, None, 0, 0, None, 0, None, False
        manager, handle, size = self._share_filename_cpu_()
        self._shared_incref()  # type: ignore[no-untyped-call]  # it stays until it is received, though the sender may drop it meanwhile
        return tag.device, (manager, handle), size, 0, None, 0, None, False

    def rebuild(
        cls: type[Storage],
        device: int,
        handle: tuple[bytes, bytes],
        size: int,
        offset: int,
        counter: object,
        *rest: object,
    ) -> object:
        torch.cuda._lazy_init()
        made = cls._new_shared_filename_cpu(*handle, size)
        made._shared_decref()
        with torch._C._DisableTorchDispatch():  # in PyTorch 2.6 `made` is not the object that C++ keeps
            made = storage_of(bytes_in(made))
        # The memory is the sender's: this process's allocator does not count it.
        attach(made, ReceivedTag(state.index(torch.device("cuda", device)), size))
        return made

    def release(cls: type, /, *args: object, **kwargs: object) -> None:
        pass

    return [
        Patch(Storage, "_share_cuda_", share),
        Patch(Storage, "_new_shared_cuda", classmethod(rebuild)),
        Patch(Storage, "_release_ipc_counter_cuda", classmethod(release)),
        Patch(Storage, "_release_ipc_counter", classmethod(release)),
    ]
