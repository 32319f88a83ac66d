"""Putting the emulation into PyTorch, and taking it out again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import partial

import torch
import torch.cuda
import torch.utils._device
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as entered_modes

from windtunnel import import_hook
from windtunnel.errors import InstallError
from windtunnel.seam.patching import Patch, Patches, undone
from windtunnel.seam.torch import kernels, registry
from windtunnel.seam.torch.compiled import compilers
from windtunnel.seam.torch.cuda import sanitizer
from windtunnel.seam.torch.dispatch import asserts, broadcast_losses, determinism, indexing, threads
from windtunnel.seam.torch.dispatch.host_time import MeasuredDispatch
from windtunnel.seam.torch.dispatch.mode import Dispatch, Handler
from windtunnel.seam.torch.dispatch.stale import StaleMode
from windtunnel.seam.torch.kernels import composites
from windtunnel.seam.torch.rehearsal import shape_functions
from windtunnel.seam.torch.rehearsal.nodata import DatalessDispatch
from windtunnel.seam.torch.state.state import State

ROOMS = ("state", "dispatch", "kernels", "tensor", "extensions", "compiled", "cuda", "profiler", "distributed")
"""The rooms whose files may register handlers of operators, and names of PyTorch that they replace."""
PATCHING = registry.registering("patches", *ROOMS)
"""Their order has no meaning: all are asked before the first name is replaced, and no two replace one name."""
LATE = registry.merged("MODULES", [(file.__name__, file.MODULES) for file in registry.registering("MODULES", *ROOMS)])
"""What is replaced in modules that the program may import later, by their names."""
DEPENDING = registry.registering("modules", *ROOMS)
"""The same, where it depends on how the GPUs are emulated."""
COMPOSITES = kernels.table("COMPOSITES")
"""Functions of C++ that are taken apart as on CUDA, by overload."""
GRADIENTS = kernels.table("GRADIENTS")
"""Operators with a gradient of their own on CUDA, by overload: what chooses it."""


def handlers() -> dict[str, Handler]:
    """Operators' own handlers; beneath and around them what concerns many operators."""
    own = [(file.__name__, file.HANDLERS) for file in registry.registering("HANDLERS", *ROOMS)]
    found = registry.merged("HANDLERS", [*own, (composites.__name__, composites.handlers(COMPOSITES))])
    found = asserts.beneath(found)
    return {**found, **indexing.around(found), **determinism.around(found), **broadcast_losses.around(found)}


HANDLERS = handlers()
"""Operators that are handled whole, by name."""

CACHES = (
    ("torch._weights_only_unpickler", "_get_allowed_globals"),
    ("torch.overrides", "_get_overridable_functions"),
    ("torch.overrides", "get_default_nowrap_functions"),
    ("torch.overrides", "get_ignored_functions"),
    ("torch.overrides", "get_testing_overrides"),
)
"""Functions of PyTorch that keep its names as they find them."""

OPERATOR_CODE = frozenset(
    method.__code__ for method in (Dispatch.__torch_dispatch__, Dispatch.general, Dispatch.on_device, Dispatch.create)
)
"""Methods whose frames know the operator that is running, as `call` or as `func`."""

ACTIVE: list[State] = []
"""The emulations that are in force in this process, innermost last."""


class Installation:
    """One emulation in PyTorch, from `install` to `uninstall`."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.patches = Patches()
        kind = DatalessDispatch if state.no_data else Dispatch if state.meter is None else MeasuredDispatch
        self.mode: Dispatch = kind(state, HANDLERS, kernels.deviations())
        self.composites = composites.Composites(state, COMPOSITES, GRADIENTS)
        self.stale = StaleMode(self.mode) if state.stale and not state.no_data else None
        self.threads = threads.Threads(state, self.mode)
        self.compilers = compilers.Compilers(self.mode) if compilers.available() else None
        self.hook: object = None
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Replace PyTorch's names and enter the dispatch mode.

        Raises:
            InstallError: CUDA is in use in this process already, or another emulation is.
        """
        if ACTIVE:
            raise InstallError("an emulation is already active in this process: end it before you start another one")
        if torch.cuda.is_initialized():
            raise InstallError(
                "CUDA is already in use in this process: start the emulation before the program touches a GPU"
            )
        with undone(self.uninstall):
            self._install()

    def _install(self) -> None:
        """Each step after what takes it back."""
        state, undo = self.state, self._undo
        state.history.stacks.dispatch = OPERATOR_CODE
        torch.utils._device._device_constructors()  # a cache that must hold PyTorch's own functions
        undo.append(self.patches.restore)
        for patches in [file.patches(state) for file in PATCHING]:
            self.patches.apply(patches)
        state.on_first_use = lambda: self.patches.apply([Patch(torch.cuda, "default_generators", state.generators)])
        self.patches.apply(self.threads.patches())
        undo.append(state.history.disable)
        undo.append(state.autocast.unregister)
        undo.append(self.composites.unregister)
        self.composites.register()
        if state.no_data:
            undo.append(shape_functions.keep_whole())
        undo.append(state.registered.unregister)
        state.registered.begin()
        undo.append(self._leave_modes)
        with sanitizer.Lifted():
            if state.strikes is not None:
                state.strikes.begin(self.mode)
            self.mode.__enter__()  # type: ignore[no-untyped-call]
            if self.stale is not None:
                self.stale.__enter__()  # type: ignore[no-untyped-call]
        undo.append(self.threads.let_go)
        undo.append(state.notes.end)
        undo.append(self._tell)
        state.notes.begin()
        undo.append(self._unhook)
        self.late = LATE | registry.merged("modules", [(file.__name__, file.modules(state)) for file in DEPENDING])
        if self.compilers is not None:
            undo.append(self.compilers.end)
            self.compilers.begin()
            self.patches.apply(self.compilers.patches())
            self.late |= self.compilers.modules()
        self.hook = import_hook.hook({name: partial(self._imported, name) for name in self.late})
        ACTIVE.append(state)

    def _imported(self, name: str) -> None:
        self.patches.apply(self.late[name](sys.modules[name]))

    def uninstall(self) -> None:
        """Leave the mode and put everything back by identity, as far as it was there."""
        ACTIVE[:] = [state for state in ACTIVE if state is not self.state]
        while self._undo:
            self._undo[-1]()
            self._undo.pop()

    def stop_threads(self) -> None:
        """At the end of the process, before `uninstall`: stop its other threads, and note what only the end shows."""
        self.threads.stop()
        self._undo.remove(self.patches.restore)
        self._undo.remove(self._tell)
        self._tell()

    def _tell(self) -> None:
        self.state.groups.tell()
        for tell in self.state.notes.at_end:
            tell()

    def _unhook(self) -> None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self.hook]

    def _leave_modes(self) -> None:
        with sanitizer.Lifted():
            for mode in (self.stale, self.mode):
                if mode is not None and any(mode is entered for entered in entered_modes()):
                    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def forget(self, modules: Collection[str]) -> None:
        """Let modules that were imported meanwhile, and PyTorch's caches, forget what they took."""
        self.patches.forget(modules)
        for module, name in CACHES:
            if module in sys.modules:
                getattr(sys.modules[module], name).cache_clear()
