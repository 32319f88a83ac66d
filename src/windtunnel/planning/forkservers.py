"""Rehearsals as forks of a Python that has imported the program's libraries (`forkserver.py`): the client's side.

Only on Linux is a process that has imported PyTorch known to fork safely. Programs that cannot be served (several
ranks, a module, a script that does not begin with imports) are started anew for each rehearsal.
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

from windtunnel import gpus, guard, launch
from windtunnel.launch import Program
from windtunnel.trace.plain import Json
from windtunnel.variables import FOLDER, FORKSERVER, TRIAL

MOST = 4
"""How many are kept at once: each holds the program's libraries in memory."""
POLL_S = 0.05
PER_RUN_OPTIONS = ("gpus", "overcommit")
"""Options of the emulation that rehearsals on one server may differ in."""


def end(folder: Path) -> None:
    """End every process of the run in `folder` that is still alive."""
    for process in guard.processes(f"{FOLDER}={folder}".encode()):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


class Fork:
    """A rehearsal's process, forked by a server."""

    def __init__(self, connection: socket.socket, ended: Callable[[], None]) -> None:
        self._connection = connection
        self._ended = ended
        self._text = b""
        self.code: int | None = None
        self.resident_bytes = 0
        self.process = int(self._answer()["process"])

    def poll(self) -> int | None:
        """The exit code; None while the process runs."""
        if self.code is None:
            self._connection.setblocking(False)
            with suppress(BlockingIOError):
                self._read()
            self._connection.setblocking(True)
        return self.code

    def kill(self) -> None:
        """End the process and all its children, and wait for them."""
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
        """The server's next line; if the server is gone, the process was killed with it."""
        while b"\n" not in self._text:
            read = self._connection.recv(1 << 16)
            if not read:
                return {"process": 0, "code": -signal.SIGKILL, "resident_bytes": 0}
            self._text += read
        line, _, self._text = self._text.partition(b"\n")
        answer: Json = json.loads(line)
        return answer


class ForkServer:
    """A Python process that has imported a program's libraries."""

    def __init__(self, program: Program, options: Mapping[str, object], variables: Mapping[str, str], cwd: str) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._ends = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="windtunnel-"))
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
        """Whether nobody waits for this server and all its forks have ended."""
        return not self._users

    def take(self) -> None:
        """Mark it busy until `fork` returns None or the returned process has been killed."""
        with self._lock:
            self._users += 1

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1

    def fork(self, request: Json, stop: Callable[[], bool]) -> Fork | None:
        """A fork for this request once the server is ready; None if it cannot serve it, or if `stop` says so."""
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
        """End the server and all its forks."""
        self._ends.close()


class ForkServers:
    """The servers of a plan, started on demand; thread-safe. `forks` counts the processes that they have forked."""

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
        """The process of a rehearsal with these options and variables; None if it must be started anew.

        `base` are the variables without those of the emulation, `stderr` is the file for the process's stderr.
        Rehearsals share a server if the program's libraries would be imported in the same way: with the same options
        and number of GPUs, whatever their models (a server whose libraries query the model refuses to serve).
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
        """End all servers."""
        with self._lock:
            while self._servers:
                self._servers.popitem()[1].close()
