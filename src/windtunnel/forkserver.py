"""A program's Python that has imported what the program begins with, and forks once for every rehearsal of it.

Rehearsals of one program differ in its arguments, its environment and the emulated GPUs, and most of a short one is the
import of its libraries. `windtunnel plan` therefore starts the program once with an address in its environment. This
runs before the program: it imports what the script's first statements import, under the emulation that the first
rehearsal has, ends that emulation, and waits at the address. Each request is answered by a fork, which takes the
request's arguments and environment and goes on as a Python that has just started: it runs the script.

It refuses to serve where that could show: where a library looked at the program's arguments while it was imported, used
a device, asked a GPU for what not all have in common, or left a thread behind.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import resource
import select
import socket
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from windtunnel.import_hook import hook
from windtunnel.seam.patching import Patch, Patches
from windtunnel.trace.plain import Json
from windtunnel.variables import FOLDER, OPTIONS

POLL_S = 0.02
MOST_REQUEST_BYTES = 16 << 20
CANNOT = 3


class Arguments(list[str]):
    """`sys.argv` that notes whether anything but the program's name is read."""

    read = False

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        self.read = self.read or index != 0
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[str]:
        self.read = True
        return super().__iter__()

    def __contains__(self, word: object) -> bool:
        self.read = True
        return super().__contains__(word)


def serve(address: str) -> None:
    """Import, wait for requests, and return once in each fork, which then is the program's Python."""
    before = dict(os.environ)
    folder = os.environ.pop(FOLDER, None)
    why = _prepare(sys.argv[0])
    if why:
        print(f"windtunnel: {why}", file=sys.stderr, flush=True)
        os._exit(CANNOT)
    if folder is not None:
        os.environ[FOLDER] = folder
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    removed = before.keys() - os.environ.keys()
    gc.collect()
    gc.freeze()
    request = _wait_for_requests(address)
    os.environ.clear()
    os.environ.update(
        {name: value for name, value in {**request["variables"], **changed}.items() if name not in removed}
    )
    sys.argv[1:] = request["arguments"]
    sys.orig_argv[:] = [sys.orig_argv[0], sys.argv[0], *request["arguments"]]


def _prepare(script: str) -> str:
    """Import what the script begins with; why it cannot be served, empty where it can."""
    from windtunnel.session import Session, options_of

    sessions: list[Session] = []

    def begin() -> None:
        session = Session(options_of(json.loads(os.environ[OPTIONS])))
        session.attach("torch")
        sessions.append(session)

    finder = hook({"torch": begin})
    main, folder = sys.modules["__main__"], os.path.dirname(os.path.realpath(script))
    watched = Arguments(sys.argv)
    patches = Patches()
    patches.apply([Patch(sys, "argv", watched), Patch(main, "__file__", script)])
    sys.path.insert(0, folder)
    whole = False
    try:
        for statement in first_imports(Path(script)):
            names = {"__name__": "__main__", "__file__": script}
            exec(compile(ast.Module([statement], []), script, "exec"), names)
        whole = True
    finally:
        if not whole:  # whatever it is, the program will meet it itself, and its own Python says it better
            os._exit(CANNOT)
    sys.path.remove(folder)
    patches.restore()
    sys.meta_path[:] = [other for other in sys.meta_path if other is not finder]
    if not sessions:
        return f"{script} does not begin with an import of torch"
    session = sessions[0]
    used = len(session.trace) > 0 or any(device.asked or device.context for device in session.machine.devices)
    session.end()
    session.forget()
    if used:
        return f"what {script} imports uses a GPU"
    if watched.read:
        return f"what {script} imports reads its arguments"
    if len(os.listdir("/proc/self/task")) > 1:
        return f"what {script} imports starts threads"
    return ""


def first_imports(script: Path) -> Iterator[ast.stmt]:
    """The imports at the top of a program, up to the first statement that does anything else.

    Those of its own modules are looked into and not run: what these import from elsewhere counts.
    """
    folder = script.resolve().parent
    yield from _imports(script, [str(folder), *(path for path in sys.path if path != str(folder))], set())


def _imports(path: Path, places: list[str], seen: set[Path]) -> Generator[ast.stmt, None, bool]:
    """The imports of a file and of the program's own modules, in order; whether it has nothing but such."""
    seen.add(path)
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    for statement in body:
        if isinstance(statement, ast.Import):
            parts: list[ast.stmt] = [ast.copy_location(ast.Import([alias]), statement) for alias in statement.names]
        else:
            parts = [statement]
        for part in parts:
            if not isinstance(part, ast.Import | ast.ImportFrom):
                if not _is_inert(part):
                    return False
                continue
            files = _own_files(part, path, places)
            if files is None:
                yield part
            for file in files or ():
                if file not in seen and not (yield from _imports(file, places, seen)):
                    return False
    return True


def _own_files(statement: ast.Import | ast.ImportFrom, path: Path, places: list[str]) -> list[Path] | None:
    """The program's own files that a statement imports; None where it imports something else."""
    if isinstance(statement, ast.Import):
        words, more = statement.names[0].name.split("."), []
    else:
        words, more = (statement.module or "").split(".") if statement.module else [], statement.names
    if isinstance(statement, ast.ImportFrom) and statement.level:
        folder = path.resolve().parents[statement.level - 1]
    else:
        spec = None if words[0] in sys.builtin_module_names else PathFinder.find_spec(words[0], places)
        places_of = (
            [] if spec is None else [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
        )
        if not any(str(place).startswith(places[0] + os.sep) for place in places_of):
            return None
        folder = Path(places[0])
    found = []
    for word in words:
        folder = folder / word
        found += [folder.with_suffix(".py"), folder / "__init__.py"]
    found += [folder / f"{alias.name}.py" for alias in more]
    return [file for file in found if file.is_file()]


def _is_inert(statement: ast.stmt) -> bool:
    """Whether a statement only names something: a definition, a docstring, a constant."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return True
    value = statement.value if isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign) else None
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return isinstance(value, ast.Constant) and all(isinstance(target, ast.Name) for target in targets)


def _wait_for_requests(address: str) -> Json:
    """Answer each request by a fork, in which the request is returned; this process goes on until it is killed."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener], [], [], POLL_S if running else None)
        for number in list(running):
            ended, status, usage = os.wait4(number, os.WNOHANG)
            if ended:
                _tell(running.pop(number), code=os.waitstatus_to_exitcode(status), usage=usage)
        if not ready:
            continue
        connection, _ = listener.accept()
        with connection.makefile("rb") as stream:
            request: Json = json.loads(stream.readline(MOST_REQUEST_BYTES))
        number = os.fork()
        if number == 0:
            os.setsid()
            for other in (listener, connection, *running.values()):
                other.close()
            with open(request["stderr"], "ab") as errors:
                os.dup2(errors.fileno(), 2)
            return request
        running[number] = connection
        _send(connection, {"process": number})


def _tell(connection: socket.socket, code: int, usage: resource.struct_rusage) -> None:
    _send(connection, {"code": code, "resident_bytes": usage.ru_maxrss * 1024})
    connection.close()


def _send(connection: socket.socket, answer: Json) -> None:
    with suppress(OSError):  # who asked has gone, and is told nothing
        connection.sendall(json.dumps(answer).encode() + b"\n")
