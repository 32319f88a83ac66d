"""A program's signal handlers run between operators: what keeps an emulation's books is never left in the middle.

On CUDA an operator is C++, and Python runs a handler after it. Here much of an operator is Python, and a handler that
raises (Ctrl-C, a notebook's stop, a timeout by SIGALRM) would leave memory that nobody frees. So the handlers that a
program installs are called where the program's own code goes on.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from types import FrameType

from windtunnel.seam.patching import Patch

Handler = Callable[[int, FrameType | None], object]

KEEPING_BOOKS = tuple(f"windtunnel.{name}." for name in ("machine", "seam", "trace", "cost", "gpus"))
WAITING = tuple(
    f"windtunnel.seam.{name}"
    for name in (
        "clock", "torch.distributed", "torch.compiled", "torch.triton", "torch.dispatch.backward",
        "torch.dispatch.faults", "torch.dispatch.threads", "torch.state.ranks", "torch.tensor.loading",
        "torch.tensor.data", "torch.tensor.processes", "torch.install", "jax", "tensorflow", "mxnet",
    )
)  # fmt: skip
"""Among them what may wait (for processes, threads, real time), compile, or run the program's code: interruptible."""
CLIENTS = tuple(f"windtunnel.{name}" for name in ("train", "experiments", "torch", "jax", "tensorflow", "mxnet"))
PROGRAM, BOOKS, LIBRARY = 0, 1, 2
LIBRARIES = (sys.stdlib_module_names - {"__main__"}) | {"torch", "windtunnel"}


class Deferring:
    """Stands in for a handler of the program's."""

    __slots__ = ("handler",)

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> object:
        outside = caller_of_ours(frame)
        again = any(number == waiting for waiting, _ in tuple(_PENDING))  # whoever asks twice is not kept waiting
        traced = not _PENDING and sys.gettrace() is not None  # by a debugger or a coverage tool, which goes before
        if outside is None or again or traced:
            return self.handler(number, frame)
        pending = (number, self.handler)
        _PENDING.append(pending)
        if _PENDING[0] is pending:  # not of a signal that came while this one was looked at
            _call_at_next_step(outside)
        return None


NUMBERS = tuple(map(int, signal.valid_signals()))
_PENDING: deque[tuple[int, Handler]] = deque()


def caller_of_ours(frame: FrameType | None) -> FrameType | None:
    """The program's innermost frame if it is calling us, perhaps through PyTorch; None if it is not.

    PyTorch's own frames are passed over, as a `with torch.no_grad()` that is left halfway leaves gradients off.
    """
    ours = False
    while frame is not None and (kind := _kind_of(frame)) != PROGRAM:
        ours |= kind == BOOKS
        frame = frame.f_back
    return frame if ours else None


def _kind_of(frame: FrameType) -> int:
    return _kind(str(frame.f_globals.get("__name__", "")))


@lru_cache(maxsize=4096)
def _kind(module: str) -> int:
    if module.startswith(KEEPING_BOOKS):
        return LIBRARY if module.startswith(WAITING) else BOOKS
    if module.startswith(CLIENTS):
        return PROGRAM
    made = module.startswith("namedtuple_")  # code without a file, as `collections` makes it
    return LIBRARY if made or module.partition(".")[0] in LIBRARIES else PROGRAM


def _call_at_next_step(frame: FrameType) -> None:
    """Call what is pending before the next instruction in `frame`, or in its caller's if it has no other."""
    steps = [one for one in (frame, frame.f_back) if one is not None]
    former = [(one.f_trace, one.f_trace_opcodes) for one in steps]

    def arrived(at: FrameType, event: str, argument: object) -> None:
        if _kind_of(at) != PROGRAM:
            return
        for one, (trace, opcodes) in zip(steps, former, strict=True):
            one.f_trace, one.f_trace_opcodes = trace, opcodes
        sys.settrace(None)
        _call_pending(at)

    for one in steps:
        one.f_trace, one.f_trace_opcodes = arrived, True
    sys.settrace(arrived)  # of a function that is called first


def _call_pending(frame: FrameType) -> None:
    number, handler = _PENDING.popleft()
    try:
        handler(number, frame)
    finally:
        if _PENDING:
            _call_pending(frame)


class Handlers:
    """The program's handlers while an emulation lasts."""

    def begin(self) -> None:
        """Put a stand-in before every handler that is installed. Only the main thread can."""
        self._replace(lambda handler: None if isinstance(handler, Deferring) else Deferring(handler))

    def end(self) -> None:
        """Put back what the program has installed."""
        self._replace(lambda handler: handler.handler if isinstance(handler, Deferring) else None)

    def _replace(self, replacement: Callable[[Handler], Handler | None]) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in NUMBERS:
            handler = signal.getsignal(number)
            if callable(handler) and (new := replacement(handler)) is not None:
                signal.signal(number, new)

    def patches(self) -> list[Patch]:
        """What installs a handler, and what tells which one is."""
        install, look = signal.signal, signal.getsignal

        def installed(handler: object) -> object:
            return handler.handler if isinstance(handler, Deferring) else handler

        def signal_(signalnum: int, handler: Handler | int | None) -> object:
            if handler is None or isinstance(handler, int | Deferring) or not callable(handler):
                return installed(install(signalnum, handler))
            return installed(install(signalnum, Deferring(handler)))

        def getsignal(signalnum: int) -> object:
            return installed(look(signalnum))

        for own, stock in ((signal_, install), (getsignal, look)):
            own.__name__, own.__doc__ = stock.__name__, stock.__doc__
        return [Patch(signal, "signal", signal_), Patch(signal, "getsignal", getsignal)]
