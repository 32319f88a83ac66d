"""Graphs that are traced with real values (`make_fx`): the emulation is told when the mode that writes them is there.

PyTorch keeps that mode after all others, where it would see what happens on the CPU. See `Dispatch.traced`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from weakref import WeakKeyDictionary

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.dispatch.mode import Dispatch

TOLD: WeakKeyDictionary[TorchDispatchMode, list[list[Dispatch]]] = WeakKeyDictionary()
"""The modes of the emulation that were told of a tracer, for each time that it was entered."""


def _patches(module: ModuleType) -> list[Patch]:
    kind = module.ProxyTorchDispatchMode
    enter, leave = kind.__enter__, kind.__exit__

    def begins(self: TorchDispatchMode) -> TorchDispatchMode:
        modes = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Dispatch)]
        for mode in modes:
            mode.traced += 1
        TOLD.setdefault(self, []).append(modes)
        made: TorchDispatchMode = enter(self)
        return made

    def ends(self: TorchDispatchMode, *exception: object) -> object:
        for mode in TOLD[self].pop() if TOLD.get(self) else ():
            mode.traced -= 1
        return leave(self, *exception)

    return [Patch(kind, "__enter__", begins), Patch(kind, "__exit__", ends)]


MODULES: dict[str, Callable[[ModuleType], list[Patch]]] = {"torch.fx.experimental.proxy_tensor": _patches}
