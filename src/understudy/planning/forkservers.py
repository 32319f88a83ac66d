"""Rehearsals as forks of a Python that has imported the program's libraries (`forkserver.py`): the side that asks.

Linux alone is known to let a process fork that has PyTorch in it. What cannot be served (several ranks, a module, a
script that does not begin with imports) is started anew for each rehearsal.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from understudy import gpus, guard, launch
from understudy.launch import Program
from understudy.trace.plain import Json
from understudy.variables import FOLDER, FORKSERVER, TRIAL

MOST = 4
"""How many are kept at once: each holds the program's libraries in memory."""
POLL_S = 0.05
PER_RUN_OPTIONS = ("gpus", "overcommit")
"""Options of the emulation that rehearsals on one server may differ in."""


def end(folder: Path) -> None:
    """End every process of the run in `folder` that still runs."""
    for process in guard.processes(f"{FOLDER}={folder}".encode()):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


class Fork:
    """A rehearsal's process; what `subprocess.Popen` would say of it."""

    def __init__(self, connection: socket.socket, ended: Callable[[], None]) -> None:
        self._connection = connection
        self._ended = ended
        self._text = b""
        self.code: int | None = None
        self.resident_bytes = 0
        self.process = int(self._answer()["process"])

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        if self.code is None:
            self._connection.setblocking(False)
            with suppress(BlockingIOError):
                self._read()
            self._connection.setblocking(True)
        return self.code

    def kill(self) -> None:
        """End it, and what it has started, and wait for that."""
        with suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        while self.code is None:
            self._read()
        self._connection.close()
        self._ended()

    def _read(self) -> None:
        answer = self._answer()
        self.code = int(answer["code"])
        self.resident_bytes = int(answer["resident_bytes"])

    def _answer(self) -> Json:
        """The next line of the server's; where it is gone, the process has been killed with it."""
        while b"\n" not in self._text:
            read = self._connection.recv(1 << 16)
            if not read:
                return {"process": 0, "code": -signal.SIGKILL, "resident_bytes": 0}
            self._text += read
        line, _, self._text = self._text.partition(b"\n")
        answer: Json = json.loads(line)
        return answer


class ForkServer:
    """One Python that has imported a program's libraries."""

    def __init__(self, program: Program, options: Mapping[str, object], variables: Mapping[str, str], cwd: str) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._ends = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="understudy-"))
        self._ends.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._ends.enter_context(launch.guarded(self.folder))
        self._address = str(self.folder / "socket")
        environment = launch.environment(options, self.folder, variables) | {FORKSERVER: self._address}
        with open(os.devnull, "r+b") as null, open(self.folder / "stderr.txt", "wb") as errors:
            self._process = subprocess.Popen(
                program.command(), env=environment, cwd=cwd, stdin=null, stdout=null, stderr=errors,
                start_new_session=True,
            )  # fmt: skip
        self._ends.callback(self._process.wait)
        self._ends.callback(end, self.folder)

    @property
    def idle(self) -> bool:
        """Whether nobody waits for it, and all its forks have ended."""
        return not self._users

    def take(self) -> None:
        """Let it not be idle until `fork` gave nothing, or what it gave has been killed."""
        with self._lock:
            self._users += 1

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1

    def fork(self, request: Json, stop: Callable[[], bool]) -> Fork | None:
        """A fork for this request, as soon as the server is ready; None where it cannot serve, or `stop` says so."""
        fork = self._fork(request, stop)
        if fork is None:
            self._leave()
        return fork

    def _fork(self, request: Json, stop: Callable[[], bool]) -> Fork | None:
        while self._process.poll() is None and not stop():
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(self._address)
                connection.sendall(json.dumps(request).encode() + b"\n")
                fork = Fork(connection, self._leave)
            except OSError:  # not yet there, or its folder's name is too long for an address
                connection.close()
                time.sleep(POLL_S)
                continue
            if fork.process:
                return fork
            connection.close()
            return None
        return None

    def close(self) -> None:
        """End it and all its forks."""
        self._ends.close()


class ForkServers:
    """The servers of a plan, made as they are needed; threads may ask at once. `forks` counts what they have given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[str, ForkServer] = {}
        self.forks = 0

    def fork(
        self,
        program: Program,
        options: Mapping[str, object],
        base: Mapping[str, str],
        variables: Mapping[str, str],
        cwd: str,
        stderr: Path,
        stop: Callable[[], bool],
    ) -> Fork | None:
        """The process of a rehearsal with these options and variables; None where it has to be started anew.

        `base` are the variables without those of the emulation, `stderr` is the file that the process writes to.
        Rehearsals share a server where the program's libraries would be imported alike: with the same options and the
        same number of GPUs, whatever their models (a server whose libraries ask for the model refuses to serve).
        """
        if sys.platform != "linux" or program.kind != "script":
            return None
        lasting = {name: value for name, value in options.items() if name not in PER_RUN_OPTIONS}
        shared = {name: value for name, value in base.items() if name != TRIAL}
        count = len(gpus.parse(str(options["gpus"])))
        key = json.dumps([program.name, count, lasting, shared, cwd], sort_keys=True)
        with self._lock:
            server = self._servers.pop(key, None)
            if server is None:
                self._make_room()
                server = ForkServer(program, options, shared, cwd)
            self._servers[key] = server  # the last is the one used last
            server.take()
        request = {"arguments": program.arguments, "variables": dict(variables), "stderr": str(stderr)}
        fork = server.fork(request, stop)
        with self._lock:
            self.forks += fork is not None
        return fork

    def _make_room(self) -> None:
        idle = [key for key, server in self._servers.items() if server.idle]
        while len(self._servers) >= MOST and idle:
            self._servers.pop(idle.pop(0)).close()

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            while self._servers:
                self._servers.popitem()[1].close()
