"""A process beside `windtunnel run` that outlives it, should it be killed: it ends the run's processes then.

Started as a script by a bare Python, so it imports next to nothing. Its first argument is the number of a pipe's end
whose other end `windtunnel run` holds: a byte says that the run ended by itself, the bare end of the pipe that it was
killed. The others are the name of a variable and the run's folder, its value: every process that has it in its
environment is the run's, and so are the children of those. Where there is no /proc only the folder is removed.
"""

import contextlib
import os
import shutil
import signal
import sys
import time

ROUNDS, PAUSE_S = 100, 0.02


def main() -> None:
    """Wait for the end of `windtunnel run`; clean up after it where it was killed."""
    pipe, name, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    if os.read(pipe, 1):
        return
    for _ in range(ROUNDS):
        found = processes(f"{name}={folder}".encode())
        if not found:
            break
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(PAUSE_S)
    shutil.rmtree(folder, ignore_errors=True)


def processes(variable: bytes) -> set[int]:
    """The processes with that variable and their descendants, of those that live."""
    if not os.path.isdir("/proc/self"):
        return set()
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                state, parent = file.read().rpartition(b") ")[2].split()[:2]
            if state in (b"Z", b"X"):
                continue
            parents[int(entry)] = int(parent)
            with open(f"/proc/{entry}/environ", "rb") as file:
                if variable in file.read().split(b"\0"):
                    found.add(int(entry))
        except OSError:  # it has ended, or is another user's
            continue
    grown = True
    while grown:
        more = {process for process, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return found - {os.getpid()}


if __name__ == "__main__":
    main()
