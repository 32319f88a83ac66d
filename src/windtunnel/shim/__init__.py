"""What a program's own Python does so that the emulation begins: an import hook, and a note about how it ended.

Imported at the start of every Python under `windtunnel run`, whatever that program is, so this module imports next to
nothing. The two folders beside it are put first on PYTHONPATH (a `sitecustomize` that calls `begin`) and on PATH (an
`nvidia-smi` that shows the emulated GPUs).
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial
from importlib.util import find_spec
from io import TextIOWrapper
from types import TracebackType

from windtunnel import exits
from windtunnel.arrivals import HERE
from windtunnel.import_hook import FRAMEWORKS, hook
from windtunnel.libraries import explained, offer
from windtunnel.variables import FOLDER, FORKSERVER, MEASURE, REFUSED, leave_note, note_outcome

DOES_NOT_FIT = 65
AGENT = "TORCHELASTIC_RUN_ID"
"""What torchrun's agent sets for its ranks."""
PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process gets when its parent ends."""
KERNELS = ("cupy", "numba.cuda", "cuda.bindings")
"""The keys of `seam.foreign_kernels.MODULES`, which is imported only beside one of these."""
DRIVER = ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1")
"""The libraries of CUDA's driver through which programs look at GPUs."""
REFUSALS = tuple(f"windtunnel.errors.{name}" for name in ("UnsupportedError", "HostMemoryError", "MissingNameError"))


def begin() -> None:
    """Arrange that this Python emulates GPUs as soon as it has a framework for them, or that it measures real ones."""
    if MEASURE not in os.environ:
        offer(lambda library: leave_note(f"{library.name}.library", str(library)))
    if address := os.environ.pop(FORKSERVER, None):
        from windtunnel import forkserver

        forkserver.serve(address)
    if AGENT in os.environ:
        _end_with_the_agent()
        _write_whole_lines()
    HERE.begin()
    exits.at_last(_note_uncaught)
    if MEASURE in os.environ:
        hook({"torch": measure})
        return
    _hide_our_frames()
    libraries = {name: partial(refuse, name) for name in KERNELS} | {"ctypes": begin_with_the_driver}
    hook(
        {name: partial(install, name) for name in FRAMEWORKS} | libraries,
        before=dict.fromkeys(KERNELS, import_torch),
    )


def _end_with_the_agent() -> None:
    """Let a rank that torchrun's agent started end when the agent does: killed, it has ended none of its ranks.

    What a rank starts has the same variables, and its parent as well.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/environ", "rb") as file:
            if any(entry.startswith(AGENT.encode() + b"=") for entry in file.read().split(b"\0")):
                return
    except OSError:  # it is another user's, or has ended
        if os.getppid() == parent:
            return
    import ctypes  # of ranks alone: it takes its time
    import signal

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _write_whole_lines() -> None:
    """Let the lines of ranks not mix: the agent starts them unbuffered, where `print` writes a line in pieces."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def import_torch() -> None:
    """A library that compiles CUDA is about to be imported: it runs on PyTorch's emulation, where PyTorch is there."""
    if "torch" not in sys.modules and find_spec("torch") is not None:
        importlib.import_module("torch")


def begin_with_the_driver() -> None:
    """Let the emulation begin where a program asks CUDA's driver for its GPUs before it imports a framework, or none.

    pynvml is one of those who do.
    """
    library = sys.modules["ctypes"].CDLL
    open_library = library.__init__

    def opened(self, name, *args, **kwargs):  # type: ignore[no-untyped-def]
        is_first = sys.modules.keys().isdisjoint(FRAMEWORKS)
        if is_first and isinstance(name, str) and os.path.basename(name) in DRIVER:
            library.__init__ = open_library
            importlib.import_module(next(name for name in FRAMEWORKS if find_spec(name)))
            library.__init__(self, name, *args, **kwargs)
        else:
            open_library(self, name, *args, **kwargs)

    library.__init__ = opened


def refuse(library: str) -> None:
    """Let such a library say that it cannot run where PyTorch is not there."""
    if "torch" not in sys.modules:
        from windtunnel.session import refuse_kernels

        refuse_kernels(sys.modules[library])


def install(framework: str) -> None:
    """Start the emulation that the environment describes; end the program with one sentence when that cannot be.

    What has a framework's name and is another module is the program's own affair, as it is where there are GPUs.
    """
    module = sys.modules.get(framework)
    if not hasattr(module, FRAMEWORKS[framework]):
        leave_note("shadow", f"{framework}\n{getattr(module, '__file__', None)}")
        return
    from windtunnel.errors import UnsupportedError, UsageError
    from windtunnel.session import install_from_environment

    try:
        install_from_environment(framework)
    except (UsageError, UnsupportedError) as error:
        code = REFUSED if isinstance(error, UnsupportedError) else 2
        note_outcome(code, str(error))
        print(f"windtunnel: {error}", file=sys.stderr)
        raise SystemExit(code) from None


def measure() -> None:
    """Record what this process does on real GPUs, for the run whose folder the environment names."""
    from windtunnel.measure import record

    folder = os.environ.get(FOLDER)
    if folder:
        record.when_cuda_begins(folder)


def _hide_our_frames() -> None:
    """Let the traceback of an exception that nobody caught be the one of real hardware, without the lines in here."""
    show = sys.excepthook

    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        error: BaseException | None = value
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            error.__traceback__ = without_our_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
        show(kind, value, value.__traceback__)

    sys.excepthook = excepthook


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of windtunnel and those through which PyTorch goes on from there to C++."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    kept = []
    inside = False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        inside = file.startswith(ours) or (inside and file.endswith(os.path.join("torch", "_ops.py")))
        if not inside:
            kept.append(trace)
        trace = trace.tb_next
    following = None
    for entry in reversed(kept):
        entry.tb_next = following
        following = entry
    return following


def _note_uncaught() -> None:
    """Look at the exception that ended the program, if one did: CPython leaves it in `sys`."""
    error = getattr(sys, "last_value", None)
    HERE.ended(error)
    if error is None:
        return
    # torch.multiprocessing and other launchers put a child's traceback into the text of an exception of their own.
    text = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    if any(name in text for name in REFUSALS):
        note_outcome(REFUSED, str(error))
    elif "OutOfMemoryError: CUDA out of memory" in text:
        note_outcome(DOES_NOT_FIT, str(error))
    elif sentence := explained(error):
        print(f"windtunnel: {sentence}", file=sys.stderr)
        note_outcome(REFUSED, sentence)
