"""Ranks on their way to the others: a file of each from its Python's start until it has joined them.

So a rank that waits in `init_process_group` learns that another one on its machine died before it came, also where
nothing else watches over both: a scheduler that starts one task a GPU, each with a `windtunnel run` of its own.
Imported at the start of every Python under `windtunnel run`, so this module imports next to nothing.
"""

from __future__ import annotations

import os
import sys
from time import time

from windtunnel.folders import private_folder

RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
JOBS = ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
LATEST_S = 300.0
"""How much older than this process a file may be: one that died before that was of another job."""


class Arrival:
    """This process as a rank that is expected; of a rank's processes the first one is, which started the others."""

    def __init__(self) -> None:
        self.began = time()
        self.folder = ""
        self.path = ""
        self.ending = ""

    def begin(self) -> None:
        """Leave the file, if the environment makes this process a rank of a job."""
        rank = next((os.environ[name] for name in RANKS if name in os.environ), "")
        job = "-".join(os.environ.get(name, "") for name in JOBS)
        if not rank.isdecimal() or not job.strip("-"):
            return
        name = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in job)
        folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"windtunnel-{os.getuid()}-{name}")
        path = os.path.join(folder, rank)
        try:
            self.folder = private_folder(folder)
            if _is_alive(_read(path)[0]):
                return
            self.path = path
            self._write("")
        except OSError:  # no such folder can be made: nobody is told
            self.path = ""
            return
        self._remember_exit()

    def joined(self) -> None:
        """It is with the others, or ended in order: nobody waits for it any more."""
        if self.path and _read(self.path)[0] == os.getpid():
            try:
                os.unlink(self.path)
                os.rmdir(self.folder)
            except OSError:  # others are on their way
                pass
            self.path = ""

    def ended(self, error: BaseException | None) -> None:
        """The process ends: by an exception, with an exit code, or in order."""
        if _read(self.path)[0] != os.getpid():  # a fork's, or it has joined
            return
        if error is not None:
            text = str(error).partition("\n")[0]
            self._write(f"exception {type(error).__name__}: {text}")
        elif self.ending:
            self._write(f"exit {self.ending}")
        else:
            self.joined()

    def gone(self) -> list[tuple[int, str, str]]:
        """The ranks that have died on their way: how ("exception", "exit", "killed"), and what is known of it."""
        found = []
        for name in sorted(os.listdir(self.folder)) if os.path.isdir(self.folder) else ():
            path = os.path.join(self.folder, name)
            process, text = _read(path)
            if not name.isdecimal() or not process or process == os.getpid() or _is_alive(process):
                continue
            try:
                recent = os.stat(path).st_mtime > self.began - LATEST_S
            except OSError:  # it has just joined
                continue
            if recent:
                how, _, more = text.partition(" ")
                found.append((int(name), how or "killed", more))
        return found

    def _write(self, text: str) -> None:
        with open(self.path, "w", encoding="utf-8", errors="replace") as file:
            file.write(f"{os.getpid()}\n{text}")

    def _remember_exit(self) -> None:
        """`sys.exit` leaves no trace of its code."""
        stock = sys.exit

        def exit(status: object = None, /) -> None:
            if status:
                text = f"exit code {status}" if isinstance(status, int) else f"exit code 1: {status}"
                self.ending = text.partition("\n")[0]
            stock(status)  # type: ignore[arg-type]

        sys.exit = exit  # type: ignore[assignment]


def _read(path: str) -> tuple[int, str]:
    """The process that left a file, 0 where there is none, and what it said at its end."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            process, _, text = file.read(4096).partition("\n")
    except OSError:
        return 0, ""
    return int(process) if process.isdecimal() else 0, text


def _is_alive(process: int) -> bool:
    if not process:
        return False
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(") ")[2][:1] not in ("Z", "X")
    except OSError:
        return False


HERE = Arrival()
