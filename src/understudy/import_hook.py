"""A function that runs right after a module was imported: how an emulation begins, and how it meets late imports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping


class ImportHook:
    """A finder that calls a function right after a module has been imported, and finds nothing itself."""

    def __init__(self, callbacks: Mapping[str, Callable[[], None]]) -> None:
        self.callbacks = callbacks

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """The spec that the other finders give, its loader armed with the callback."""
        callback = self.callbacks.get(name)
        if callback is None:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if spec.loader is not None:  # a folder that only happens to have the name has none
                        _after_exec(spec.loader, callback)
                    return spec
        return None


def _after_exec(loader, callback: Callable[[], None]) -> None:  # type: ignore[no-untyped-def]
    run = loader.exec_module

    def exec_module(module):  # type: ignore[no-untyped-def]
        del loader.exec_module  # the loader is its own again
        run(module)
        callback()

    loader.exec_module = exec_module


def hook(callbacks: Mapping[str, Callable[[], None]]) -> ImportHook:
    """Call `callbacks[name]` when the import of `name` has finished; at once for what is imported already."""
    waiting = {name: callback for name, callback in callbacks.items() if name not in sys.modules}
    finder = ImportHook(waiting)
    sys.meta_path.insert(0, finder)
    for name in callbacks.keys() - waiting.keys():
        callbacks[name]()
    return finder
