"""A function that runs right after a module was imported: how an emulation begins, and how it meets late imports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

FRAMEWORKS = {"torch": "Tensor", "jax": "Array", "tensorflow": "Tensor", "mxnet": "nd"}
"""The packages into which GPUs are emulated, as soon as they have been imported.

With a name that tells each from a file of the program's own which only happens to have its name.
"""


class ImportHook:
    """A finder that calls functions right before or after a module is imported, and finds nothing itself."""

    def __init__(self, callbacks: Mapping[str, Callable[[], None]], before: dict[str, Callable[[], None]]) -> None:
        self.callbacks = callbacks
        self.before = before

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """The spec that the finders behind it give, its loader armed with the callback."""
        before = self.before.pop(name, None)
        if before is not None:
            before()  # which may put finders in front of this one
            finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
            asked = (finder.find_spec(name, path, target) for finder in finders)
            return next((spec for spec in asked if spec is not None), None)
        callback = self.callbacks.get(name)
        if callback is None or self not in sys.meta_path:  # taken out meanwhile
            return None
        place = sys.meta_path.index(self)  # those before it, another hook's among them, have been asked
        for finder in sys.meta_path[place + 1 :]:
            if hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if spec.loader is not None:  # a folder that only happens to have the name has none
                        _after_exec(spec.loader, callback)
                    return spec
        return None


def _after_exec(loader, callback: Callable[[], None]) -> None:  # type: ignore[no-untyped-def]
    run = loader.exec_module

    def exec_module(module):  # type: ignore[no-untyped-def]
        vars(loader).pop("exec_module", None)  # the loader is its own again, where two hooks wait as well
        run(module)
        callback()

    loader.exec_module = exec_module


def hook(
    callbacks: Mapping[str, Callable[[], None]], before: Mapping[str, Callable[[], None]] | None = None
) -> ImportHook:
    """Call `callbacks[name]` when the import of `name` has finished; at once for what is imported already.

    `before[name]` is called when it begins. Where one of those fails, nothing is left in place.
    """
    waiting = {name: callback for name, callback in callbacks.items() if name not in sys.modules}
    finder = ImportHook(waiting, dict(before or {}))
    sys.meta_path.insert(0, finder)
    try:
        for name in callbacks.keys() - waiting.keys():
            callbacks[name]()
    except BaseException:
        sys.meta_path.remove(finder)
        raise
    return finder
