"""What a process of a run leaves behind in the run's folder: its records, written as they come.

The journal begins when a device is first used, so a process without one used none. It grows whenever the host waits
for a device and every few thousand operations, and it ends with a mark once the process has ended in order: at Python's
exit, or before `os._exit`, `os.abort` and `os.exec*`. A journal without the mark is that of a process that was killed.
"""

from __future__ import annotations

import itertools
import multiprocessing.util
import os
import signal
import sys
import sysconfig
import threading
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic_ns
from typing import Protocol

from windtunnel import exits
from windtunnel.seam import leaving, uncaught
from windtunnel.seam.patching import Patch
from windtunnel.trace import journal
from windtunnel.trace.rows import SPILL, WIDTH
from windtunnel.trace.trace import Trace

SUFFIX = ".journal"
UNWRITTEN = ".unwritten"
"""Of a link that tells by its target why its process wrote no more: a link needs no open file and no bytes of one."""
FEW, SOON_NS = 1024, 10_000_000
"""A wait of the host with fewer new rows than that writes them only when the last writing was so long ago, or so few
rows were written before: a loop that waits for each number is not to open a file each time."""


def program_files() -> list[str]:
    """The files that this process has imported, but for those of installed packages and the standard library."""
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed = tuple(os.path.realpath(path) + os.sep for path in [*libraries, os.path.dirname(__file__)] if path)
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    files = {os.path.realpath(file) for file in loaded if isinstance(file, str) and os.path.isfile(file)}
    own = (file for file in files if not file.startswith(installed))
    return sorted(file for file in own if not {"site-packages", "dist-packages"} & set(file.split(os.sep)))


class Stopping(Protocol):
    """Of those options the one that is asked for here."""

    @property
    def stop_after(self) -> int | None:
        """After how many steps of optimizers the program ends; None where it goes on to its end."""


class Ending(Protocol):
    """What is asked of the emulation that a process leaves."""

    trace: Trace

    @property
    def options(self) -> Stopping:
        """The options of the emulation."""

    def replace(self, patches: Iterable[Patch]) -> None:
        """Replace names, until the emulation ends."""

    @property
    def is_idle(self) -> bool:
        """Whether the process used no GPU."""

    def write_totals(self) -> None:
        """Write into the trace's facts what has come of each device so far."""

    def write_band(self) -> None:
        """Write the error band into them."""

    def complete(self) -> None:
        """Write the rest."""

    def stop_threads(self) -> None:
        """Let the program's other threads go no further with their GPUs, and say what only the end shows."""

    def uninstall(self) -> None:
        """Put everything back."""


class ExitHandler:
    """Keeps the records of one process in the run's folder, and ends its emulation, whichever way the process ends."""

    def __init__(self, session: Ending, folder: str) -> None:
        self.session = session
        self.trace = session.trace
        self.folder = folder
        self.done = False
        self._begin()

    def arrange(self) -> None:
        """Watch for everything that ends this process, and for its forks."""
        self.trace.sink = self.keep
        self.session.replace(leaving.patches(self.complete_journal))
        exits.at_last(self.save)
        os.register_at_fork(after_in_child=self.forked)
        multiprocessing.util.register_after_fork(self, ExitHandler.bootstrapped)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._path = ""
        self._pages = journal.Pages(self.trace)
        self._kept_ns = 0
        self._band_rows = 0

    # ------------------------------------------------------------------ as it comes

    def keep(self) -> None:
        """Write the rows that are new, unless they are few, many were before, and the last were written just now."""
        now = monotonic_ns()
        new = len(self.trace.rows) - self._pages.written
        if now - self._kept_ns < SOON_NS and new < FEW <= self._pages.written:
            return
        if self.done or not self._lock.acquire(blocking=False):
            return
        try:
            self._kept_ns = now
            first = not self._path
            facts = [self._facts()] if first or new >= SPILL // WIDTH else []
            self._append(itertools.chain(self._pages.new(), facts))
        finally:
            self._lock.release()

    def _facts(self) -> bytes:
        self.session.write_totals()
        if len(self.trace.rows) >= 2 * self._band_rows:  # it costs a look at all rows
            self._band_rows = len(self.trace.rows)
            self.session.write_band()
        return self._pages.facts()

    def complete_journal(self) -> None:
        """Complete the journal: no more may come. Should more come all the same (an `exec` that failed), it goes on."""
        if self.done or (not self._path and self.session.is_idle):
            return
        # Held for good where a signal's handler leaves in the middle of a writing: then the mark of the end misses.
        if not self._lock.acquire(timeout=1):
            return
        try:
            self.session.complete()
            if self.session.options.stop_after is not None:
                self.trace.facts["program_files"] = program_files()
            self._append(self._pages.last())
        finally:
            self._lock.release()

    def _append(self, pages: Iterable[bytes]) -> None:
        """Add to the file, which is opened each time: a program may close every file that it does not know."""
        try:
            if not self._path:
                self._path = self._new_path()
                pages = itertools.chain([journal.MAGIC], pages)
            with open(self._path, "r+b", buffering=0) as file:
                file.seek(0, os.SEEK_END)
                for page in pages:
                    left = memoryview(page)
                    while left:
                        left = left[file.write(left) :]
        except OSError as error:
            # A full disk, a limit of the process, or a folder that is gone. The program goes on.
            self.done = True
            with suppress(OSError):
                os.symlink(error.strerror or str(error), os.path.join(self.folder, f"{os.getpid()}{UNWRITTEN}"))

    def _new_path(self) -> str:
        """A new file's path: a program begun by `exec` has the number of the process that it took over."""
        number = 0
        while True:
            path = os.path.join(self.folder, f"{os.getpid()}{f'-{number}' if number else ''}{SUFFIX}")
            try:
                with open(path, "xb"):
                    return path
            except FileExistsError:
                number += 1

    # ------------------------------------------------------------------ the end

    def save(self) -> None:
        """End the emulation and complete the journal, once."""
        if self.trace.sink is None:
            return
        self.trace.sink = None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would lose what the first one ended
        self.session.stop_threads()
        uncaught.remark(self.trace, self.session.is_idle)
        self.complete_journal()
        self.done = True
        self.session.uninstall()

    # ------------------------------------------------------------------ forks

    def forked(self) -> None:
        """What happened before a fork is the parent's to save; after it nothing can, as with CUDA."""
        self._begin()
        self.done = self.trace.sink is None or not self.session.is_idle

    def bootstrapped(self) -> None:
        """A process of multiprocessing begins: it leaves by `os._exit`, after its own finalizers."""
        multiprocessing.util.Finalize(None, self.save, exitpriority=0)
