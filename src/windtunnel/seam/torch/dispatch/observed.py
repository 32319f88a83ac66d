"""The dispatch mode while somebody watches its operators; otherwise the mode has nothing round it."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Types

OBSERVER = "observer"


def observe(mode: Dispatch, around: Callable[..., object]) -> None:
    """Let `around(dispatch, func, types, args, kwargs)` call the mode for each operator, but those of a profiler."""
    kind = type(mode)

    class Observed(kind):  # type: ignore[misc, valid-type]
        observer = staticmethod(around)

        def __torch_dispatch__(
            self, func: OpOverload, types: Types, args: Arguments = (), kwargs: Keywords | None = None
        ) -> object:
            if func.namespace == "profiler":  # a range of the program's own, which begins or ends here
                return super().__torch_dispatch__(func, types, args, kwargs)
            return around(super().__torch_dispatch__, func, types, args, kwargs)

    mode.__class__ = Observed


def leave(mode: Dispatch) -> None:
    """End that; a mode whose emulation has ended meanwhile (`threads.Threads.let_go`) stays as it is."""
    kind = type(mode)
    if OBSERVER in vars(kind):
        mode.__class__ = kind.__bases__[0]
