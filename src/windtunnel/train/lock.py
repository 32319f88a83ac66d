"""Only one training at a time writes to a folder: a lock that is released when its process ends, however it ends."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import warnings
from pathlib import Path

from windtunnel.errors import UsageError

if sys.platform != "win32":
    import fcntl

LOCK = ".lock"

# The locks that this process holds, by the identity of their file, and who it was: a forked child inherits the table.
# The system would let the process lock a file twice, and unlocks it as soon as the process closes the file anywhere.
_held: dict[tuple[int, int], int] = {}
_guard = threading.Lock()


class FolderLock:
    """`acquire` creates the folder and locks it, `release` unlocks it.

    The lock is the operating system's, on the file `.lock`, and belongs to the process: it is released when the process
    is killed, and forked processes, such as a DataLoader's workers, do not hold it. The file names the holder.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / LOCK
        self._file = -1

    def acquire(self) -> None:
        """Raises UsageError if another training holds the lock or the folder cannot be written to."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with _guard:
                while self._file < 0:
                    self._file = self._locked_file()
        except OSError as error:
            raise UsageError(
                f"checkpoints cannot be written to {self.directory} ({error.strerror or error}): choose a folder that "
                "this process may write to."
            ) from error

    def _locked_file(self) -> int:
        """The open, locked file; -1 if its former holder removed it meanwhile."""
        me = f"process {os.getpid()} on {socket.gethostname()}"
        if self._path.exists() and _held.get(_identity(os.stat(self._path))) == os.getpid():
            raise self._refusal(me)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _lock(file):
                raise self._refusal(os.pread(file, 200, 0).decode(errors="replace"))
            identity = _identity(os.fstat(file))
            if not self._path.exists() or _identity(os.stat(self._path)) != identity:
                return -1
            os.truncate(file, 0)
            os.write(file, me.encode())
            _held[identity] = os.getpid()
            locked, file = file, -1
            return locked
        finally:
            if file >= 0:
                os.close(file)

    def _refusal(self, holder: str) -> UsageError:
        return UsageError(
            f"another training ({holder or 'of a process that has not said which'}) writes to {self.directory}: wait "
            "for its end, or choose another folder."
        )

    def release(self) -> None:
        """Unlock the folder if this process has locked it."""
        with _guard:
            identity = _identity(os.fstat(self._file)) if self._file >= 0 else None
            if identity is None or _held.get(identity) != os.getpid():
                return
            del _held[identity]
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _lock(file: int) -> bool:
    """Whether the file is now locked by this process; True, with a warning, if the file system has no locks."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        warnings.warn(f"the folder of checkpoints cannot be locked ({error.strerror}): train there once.", stacklevel=2)
    return True
