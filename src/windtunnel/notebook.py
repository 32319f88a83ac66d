"""Emulated GPUs that come and go in one process: `start()` and `stop()`, and the magics of a notebook.

    %load_ext windtunnel
    %gpus 2xV100          two emulated V100 from here on; %gpus shows what happened so far, %gpus off ends it
    %%rehearse 4xA100     GPUs for this cell alone, and a report of it

Child processes and `!nvidia-smi` see the same GPUs. A guard removes what this leaves on disk, and ends the processes
that the notebook started, should the kernel be killed.
"""

from __future__ import annotations

import atexit
import linecache
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module, util
from pathlib import Path
from types import FrameType
from typing import Protocol

import click

from windtunnel import gpus, import_hook, launch, libraries, variables
from windtunnel.checks import run as run_checks
from windtunnel.cli._options import emulation_options, given
from windtunnel.errors import InstallError, UsageError, torch_is_missing
from windtunnel.import_hook import FRAMEWORKS
from windtunnel.reports import cell, text
from windtunnel.seam import sites
from windtunnel.seam.patching import uninterrupted
from windtunnel.session import Session, options_of
from windtunnel.trace.finding import Finding
from windtunnel.trace.trace import Trace

DEFAULT = "1"
CHANGED = (variables.OPTIONS, variables.PYTHON, variables.FOLDER, "PYTHONPATH", "PATH")
"""What a child process needs to emulate the same GPUs, and to say how much of them it uses."""


class Running:
    """The emulation that is on in this process, with all that it changed outside of the frameworks."""

    def __init__(self, session_options: dict[str, object]) -> None:
        if not any(util.find_spec(name) for name in FRAMEWORKS):
            raise torch_is_missing()
        self._undo = ExitStack()
        with ExitStack() as undo:
            folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="windtunnel-", ignore_cleanup_errors=True))
            undo.enter_context(launch.guarded(Path(folder)))
            launch.prepare(Path(folder))
            children = launch.environment(session_options, Path(folder), os.environ)
            undo.enter_context(variables.changed({name: children[name] for name in CHANGED}))
            self.session = Session(options_of(session_options))
            undo.callback(self._end)
            with uninterrupted():
                waiting = {name: partial(self.session.attach, name) for name in FRAMEWORKS}
                self._hook = import_hook.hook(waiting)
                self._finder = libraries.offer(_said)
            self._undo = undo.pop_all()

    def _end(self) -> None:
        with uninterrupted():
            with suppress(AttributeError, ValueError):
                sys.meta_path.remove(self._hook)
            with suppress(AttributeError, ValueError):
                libraries.withdraw(self._finder)
            self.session.end()
            self.session.forget()

    def close(self) -> None:
        """End it."""
        self._undo.close()


def _said(library: libraries.Library) -> None:
    print(f"windtunnel: {libraries.sentence(str(library))}", file=sys.stderr)


_RUNNING: list[Running] = []


def start(gpus: str | int = "2", **options: object) -> Session:
    """Emulate GPUs in this process, and in the processes that it starts, until `stop()`.

    Args:
        gpus: a spec such as "2xV100", "V100:2", "A100,H100" or "2".
        options: further fields of `Options`.

    Raises:
        UsageError: an option or a GPU does not exist.
        InstallError: CUDA is in use in this process, or GPUs are already emulated here.
    """
    _name_cells()
    if _RUNNING:
        raise InstallError(
            f"GPUs are already emulated here ({_RUNNING[0].session.options.gpus}): windtunnel.stop() ends that"
        )
    if variables.OPTIONS in os.environ:
        raise InstallError("this process runs under `windtunnel run`, which has already given it GPUs")
    if options.get("stop_after") is not None:
        raise UsageError("stop_after ends the process: use `windtunnel run --stop-after`")
    running = Running({"gpus": str(gpus), **options})
    if not _RUNNING:
        atexit.register(_at_exit)
    _RUNNING.append(running)
    return running.session


def stop(*, move: bool = False) -> Session:
    """End the emulation that `start()` began, and return its session, which can still report.

    A PyTorch tensor on an emulated GPU raises `EmulationEndedError` if it is used afterwards. With `move` such tensors
    become ordinary CPU tensors with the same values. Arrays of JAX, TensorFlow and MXNet always become CPU arrays.

    Raises:
        UsageError: no GPUs are emulated by `start()`, or there are no values that could be moved.
    """
    if not _RUNNING:
        raise UsageError("no GPUs are emulated here: windtunnel.start() begins that")
    (running,) = _RUNNING
    session = running.session
    if move and session.options.no_data:
        raise UsageError("nothing can be moved to the CPU: with no_data, tensors on the GPUs have no values")
    session.settle()
    if "torch" in sys.modules:
        from windtunnel.seam.torch import survivors

        survivors.leave(survivors.on_devices(), move)
    _RUNNING.clear()
    running.close()
    return session


def _at_exit() -> None:
    while _RUNNING:
        _RUNNING.pop().close()


class Shown:
    """A report that a notebook shows as HTML and a terminal as text."""

    def __init__(self, trace: Trace, findings: Sequence[Finding]) -> None:
        self.trace, self.findings = trace, findings

    def _repr_html_(self) -> str:
        return cell.render(self.trace, self.findings)

    def __repr__(self) -> str:
        return text.render(self.trace, self.findings, width=100, max_findings=text.MAX_FINDINGS)


def _shown(session: Session, first: int = 0) -> Shown:
    """The report on what happened since row number `first`."""
    session.complete()
    trace = session.trace.canonical() if first == 0 else session.trace.since(first).canonical()
    return Shown(trace, run_checks(trace))


# ---------------------------------------------------------------------- magics


class Compiler(Protocol):
    """Of IPython's compiler, what says which cell a file's name stands for."""

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        """("Cell", "In[10]"), or None."""


class Result(Protocol):
    """Of what IPython's `run_cell` returns, what was raised."""

    error_before_exec: BaseException | None
    error_in_exec: BaseException | None


class Magics(Protocol):
    """Of IPython's manager of magics, those that there are."""

    magics: dict[str, dict[str, object]]


class Shell(Protocol):
    """Of IPython's shell, what is used here."""

    compile: Compiler
    magics_manager: Magics
    execution_count: int
    showtraceback: Callable[..., None]
    showsyntaxerror: Callable[..., None]

    def register_magic_function(self, func: Callable[..., object], magic_kind: str, magic_name: str) -> None:
        """Add a magic."""

    def run_cell(self, raw_cell: str, store_history: bool) -> Result:
        """Run a cell's text."""


def load_ipython_extension(ipython: Shell) -> None:
    """Add the magics; `%load_ext windtunnel` calls this."""
    _name_cells()
    ipython.register_magic_function(_gpus, "line", "gpus")
    ipython.register_magic_function(partial(_rehearse, ipython), "cell", "rehearse")


def _name_cells() -> None:
    """Let findings name a notebook's cells, where this process is a notebook's or IPython's."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        sites.CELLS[:] = [partial(_cell_of, shell.compile)]


def unload_ipython_extension(ipython: Shell) -> None:
    """End the emulation, if one is on, and take the magics away."""
    if _RUNNING:
        stop(move=not _RUNNING[0].session.options.no_data)
    sites.CELLS.clear()
    ipython.magics_manager.magics["line"].pop("gpus", None)
    ipython.magics_manager.magics["cell"].pop("rehearse", None)


def _cell_of(compiler: Compiler, file: str) -> str:
    """ "Cell In[10]" for the name under which a cell was compiled; its text is kept under that name as well."""
    found = compiler.format_code_name(file)
    if found is None:
        return ""
    name = " ".join(found)
    if file in linecache.cache:
        linecache.cache[name] = linecache.cache[file]
    return name


@click.command("%gpus", add_help_option=False)
@emulation_options
@click.option("--move", is_flag=True, help="With off: tensors on the GPUs become tensors of the CPU.")
@click.argument("word", required=False)
def _line(**_: object) -> None:
    """What the magics take: GPUs as of `--gpus`, and the options of `windtunnel run`."""


def _words(name: str, line: str) -> tuple[str, bool, dict[str, object]]:
    """A magic's GPUs ("" where it names none), whether it says --move, and fields of `Options`."""
    try:
        values = _line.make_context(name, shlex.split(line)).params
    except (click.ClickException, ValueError) as error:
        said = error.format_message() if isinstance(error, click.ClickException) else str(error)
        raise UsageError(f"{name} {line}: {said}") from None
    fields = given(values)
    word = values["word"] or fields.get("gpus") or ""
    fields.pop("gpus", None)
    return str(word), bool(values["move"]), fields


def _gpus(line: str) -> Shown | None:
    """%gpus 2xV100 [options of `windtunnel run`] | off [--move] | (nothing: what happened so far)."""
    word, move, fields = _words("%gpus", line)
    if not word:
        if not _RUNNING:
            raise UsageError("no GPUs are emulated here: %gpus 2xV100 begins that")
        return _shown(_RUNNING[0].session)
    if word == "off":
        if not _RUNNING:
            raise UsageError("no GPUs are emulated here, so there is nothing to end")
        return _shown(stop(move=move))
    gpus.parse(word)
    if _RUNNING:
        stop(move=move)
    session = start(word, **fields)
    names = [gpu.name for gpu in session.models]
    print(f"EMULATED: {', '.join(f'cuda:{index} {name}' for index, name in enumerate(names))}")
    return None


def _rehearse(ipython: Shell, line: str, body: str) -> None:
    """%%rehearse [GPUS] [options]: run this cell on GPUs of its own, or on those of %gpus, and report on it."""
    word, _, fields = _words("%%rehearse", line)
    own = not _RUNNING
    if not own and (word or fields):
        raise UsageError(
            f"%gpus has {_RUNNING[0].session.options.gpus} on: give %%rehearse no GPUs or options, or say `%gpus off`"
        )
    session = start(word or DEFAULT, **fields) if own else _RUNNING[0].session
    first = len(session.trace)
    try:
        error = _run(ipython, body)
        session.settle()
        import_module("IPython.display").display(_shown(session, first))
    finally:
        if own:
            stop()
    if error is not None:
        raise error


def _run(ipython: Shell, body: str) -> BaseException | None:
    """Run a cell's text, its lines and its number those that the reader sees; what it raised."""
    show, show_syntax, count = ipython.showtraceback, ipython.showsyntaxerror, ipython.execution_count
    ipython.showtraceback = ipython.showsyntaxerror = lambda *_, **__: None  # the magic's own shows it, once
    ipython.execution_count = _cell_number(ipython.compile) or count
    above = "" if body.lstrip().startswith("%%") else "#\n"  # in the place of the magic's line
    try:
        result = ipython.run_cell(above + body, store_history=False)
    finally:
        ipython.showtraceback, ipython.showsyntaxerror, ipython.execution_count = show, show_syntax, count
    return result.error_before_exec or result.error_in_exec


def _cell_number(compiler: Compiler) -> int | None:
    """The number of the cell that is running: while it does, IPython may have counted on."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        found = compiler.format_code_name(frame.f_code.co_filename)
        if found is not None:
            digits = "".join(filter(str.isdigit, found[1]))
            return int(digits) if digits else None
        frame = frame.f_back
    return None
