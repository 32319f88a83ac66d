"""Putting the emulation into PyTorch, and taking it out again."""

from __future__ import annotations

import sys
from functools import partial

import torch
import torch.cuda
import torch.utils._device

from understudy import import_hook
from understudy.errors import InstallError
from understudy.seam.patching import Patches
from understudy.seam.torch import (
    array_interface,
    asserts,
    attention,
    attention_varlen,
    autocast,
    batch_norm,
    combining,
    compiling,
    composites,
    ctc,
    data,
    determinism,
    device_branches,
    device_kernels,
    distributed,
    distributed_collectives,
    distributed_nccl,
    dlpack,
    driver,
    factories,
    fake,
    fetches,
    foreign,
    functional,
    generators,
    gpu_trace,
    gradients,
    graphs,
    half,
    higher_order,
    indexing,
    libraries,
    loading,
    memory,
    mode_dependent,
    moves,
    notes,
    order,
    parallel,
    plans,
    pools,
    processes,
    profiler,
    recurrent,
    rpc,
    scattered,
    sequences,
    storage,
    streams,
    tensor,
    tensor_types,
    threads,
    timer,
    tracing,
    tunable,
    warned,
)
from understudy.seam.torch.dispatch import Dispatch
from understudy.seam.torch.history import History
from understudy.seam.torch.host_time import MeasuredDispatch
from understudy.seam.torch.nodata import DatalessDispatch
from understudy.seam.torch.stale import StaleMode
from understudy.seam.torch.state import State

PATCHED = (
    notes,
    storage,
    tensor,
    tensor_types,
    factories,
    streams,
    generators,
    dlpack,
    array_interface,
    driver,
    gpu_trace,
    memory,
    pools,
    graphs,
    autocast,
    functional,
    gradients,
    plans,
    libraries,
    order,
    parallel,
    distributed_nccl,
    distributed,
    processes,
    loading,
    profiler,
    compiling,
    tracing,
    foreign,
    warned,
    fake,
    higher_order,
    data,
    attention_varlen,
    tunable,
)
"""Modules whose `patches(state)` are applied, in this order."""

PLAIN_HANDLERS = {
    **asserts.HANDLERS,
    **combining.HANDLERS,
    **scattered.HANDLERS,
    **moves.HANDLERS,
    **plans.HANDLERS,
    **libraries.HANDLERS,
    **mode_dependent.HANDLERS,
    **device_branches.HANDLERS,
    **device_kernels.HANDLERS,
    **fetches.HANDLERS,
    **half.HANDLERS,
    **batch_norm.HANDLERS,
    **ctc.HANDLERS,
    **attention.HANDLERS,
    **attention_varlen.HANDLERS,
    **recurrent.HANDLERS,
    **composites.HANDLERS,
    **sequences.HANDLERS,
    **distributed_collectives.HANDLERS,
}
LATE = {**foreign.MODULES, **timer.MODULES, **rpc.MODULES}
"""What is replaced in modules that the program may import later, by their names."""

HANDLERS = {**PLAIN_HANDLERS, **indexing.around(PLAIN_HANDLERS), **determinism.around(PLAIN_HANDLERS)}
"""Operators that are handled whole, by name."""

ACTIVE: list[State] = []
"""The emulations that are in force in this process, innermost last."""


class Installation:
    """One emulation in PyTorch, from `install` to `uninstall`."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.patches = Patches()
        kind = DatalessDispatch if state.no_data else Dispatch if state.meter is None else MeasuredDispatch
        self.mode: Dispatch = kind(state, HANDLERS)
        self.composites = composites.Composites(state)
        self.stale = StaleMode(self.mode) if state.stale and not state.no_data else None

    def install(self) -> None:
        """Replace PyTorch's names and enter the dispatch mode.

        Raises:
            InstallError: CUDA is in use in this process already, or another emulation is.
        """
        if ACTIVE:
            raise InstallError("an emulation is active in this process already: end it before another one begins")
        if torch.cuda.is_initialized():
            raise InstallError(
                "CUDA is in use in this process already: begin the emulation before the program touches a GPU"
            )
        state = self.state
        state.history = History(state)
        torch.utils._device._device_constructors()  # a cache that must hold PyTorch's own functions
        for module in PATCHED:
            self.patches.apply(module.patches(state))
        self.patches.apply(threads.patches(state, self.mode))
        self.composites.register()
        with gpu_trace.Lifted():
            self.mode.__enter__()  # type: ignore[no-untyped-call]
            if self.stale is not None:
                self.stale.__enter__()  # type: ignore[no-untyped-call]
        state.notes.begin()
        self.hook = import_hook.hook({name: partial(self._imported, name) for name in LATE})
        ACTIVE.append(state)

    def _imported(self, name: str) -> None:
        self.patches.apply(LATE[name](sys.modules[name]))

    def uninstall(self) -> None:
        """Leave the mode and put everything back by identity."""
        ACTIVE.remove(self.state)
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self.hook]
        self.state.notes.end()
        with gpu_trace.Lifted():
            if self.stale is not None:
                self.stale.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.composites.unregister()
        self.state.autocast.unregister()
        self.state.history.disable()
        self.patches.restore()
