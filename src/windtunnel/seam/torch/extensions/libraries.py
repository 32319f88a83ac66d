"""The stub library in this process, what was registered with it, and the emulation that answers it."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from windtunnel.compiler.extensions import cache_folder
from windtunnel.seam.cuda_runtime import errors
from windtunnel.seam.cuda_runtime.library import Library
from windtunnel.seam.cuda_runtime.modules import Modules
from windtunnel.seam.torch.extensions.process import TorchProcess
from windtunnel.seam.torch.state.state import State

_libraries: dict[str, Library] = {}
"""By path; a process loads each once."""
_modules = Modules(lambda: cache_folder("kernels"))
"""What was registered in this process: it outlives an emulation, as the libraries do."""
_of: weakref.WeakKeyDictionary[State, TorchProcess] = weakref.WeakKeyDictionary()
_begun: list[weakref.ref[State]] = []
"""The emulation that began last."""


def begin(state: State) -> None:
    """From now on this emulation answers what extensions ask."""
    _begun[:] = [weakref.ref(state)]
    for library in _libraries.values():
        _show(library)


def process_of(state: State) -> TorchProcess:
    """An emulation as the driver sees it; from the first question on, its tensors' addresses are followed."""
    found = _of.get(state)
    if found is None:
        found = _of[state] = TorchProcess(state, _modules)
        found.addresses.join()
    return found


def loaded(path: str | Path) -> None:
    """The stub library is in this process, or shall be: it says so itself when an extension brings it along."""
    name = os.path.realpath(path)
    if name not in _libraries and current() is not None:
        library = _libraries[name] = Library(Path(name), _answer)
        _show(library)


def _show(library: Library) -> None:
    """In a rehearsal without data, C++ asks tensors for their data all the same."""
    state = current()
    if state is not None and state.no_data:
        process_of(state).addresses.show(library.place)


def current() -> State | None:
    """The emulation that is on."""
    return _begun[0]() if _begun else None


def _answer(name: str, arguments: tuple[int, ...]) -> int:
    state = current()
    return errors.NO_DEVICE if state is None else process_of(state).answer(name, arguments)
