"""Which line of the program asked: a short walk up the stack, past frameworks, the standard library and ourselves."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Container
from functools import lru_cache
from types import CodeType, FrameType
from typing import NamedTuple

from windtunnel.trace.operation import Site
from windtunnel.trace.trace import Table

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
PROGRAMS = tuple(os.path.join(OURS, name) + os.sep for name in ("experiments", "programs"))
"""Parts of this package that count as programs: the experiments, and the examples in the wheel."""
STAND_INS = os.path.join(OURS, "libraries") + os.sep
STANDARD = tuple(os.path.realpath(sysconfig.get_paths()[name]) + os.sep for name in ("stdlib", "platstdlib"))
PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
HIDING = (
    f"{os.sep}torch{os.sep}",
    f"{os.sep}torchinductor_",
    f"{os.sep}windtunnel{os.sep}inductor{os.sep}",
    f"{os.sep}windtunnel_inductor_",
)
"""In the names of PyTorch's files and of those that Inductor generates, for PyTorch and for an emulation."""
DEPTH = 60
FRAMES_KEPT = 12

CELLS: list[Callable[[str], str]] = []
"""In a notebook: what says which cell a file's name stands for, "Cell In[10]"; "" where it stands for none."""

MAGIC = re.compile(r"get_ipython\(\)\.run_cell_magic\('(\w+)'")
"""How IPython calls a cell's magic, which is the first line of the cell as it is run."""
WHOLE = ("rehearse",)
"""Magics whose cells are run with a line in the place of the magic's."""
BODIES = ("<module>", "inner")
"""What a cell's statements are compiled as, also by `%%timeit`."""

MOST_CODES = 1 << 16
"""Of how many code objects it is known whose they are; a program may make new ones without end."""

PROGRAM, LIBRARY, HIDDEN = 0, 1, 2
CALL = compile("call()", "", "eval")


class Caller(NamedTuple):
    """Who asked for an operation, as one walk up the stack finds it.

    `site` is the number of the line in `frame`; `library` the innermost line of a library that this line is calling, as
    "package/file.py:12", or ""; `through` says whether the line is calling the function that was asked about.
    """

    frame: FrameType | None
    site: int
    library: str
    through: bool


made = tuple.__new__
"""Makes a caller in a third of the time of `Caller(...)` (0.2 of 0.6 us), for every value that the host reads."""


class Sites:
    """Numbers the lines of the program that the trace refers to.

    `stacks` keeps the callers as well. A line is the innermost frame of the program itself; a frame of an installed
    library counts when there is no other.
    """

    def __init__(self, table: Table[Site], stacks: bool = False) -> None:
        self.table = table
        self.stacks = stacks
        # By identity, since the hash of a code object is computed from all its instructions; `_codes` keeps them alive.
        self._kinds: dict[int, int] = {}
        self._codes: list[CodeType] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self.here = os.getcwd() + os.sep

    def number(self, depth: int = 1) -> int:
        """The number of the calling program's line in the table of sites; 0 when there is none."""
        frame = self.frame(depth + 1)
        return 0 if frame is None else self.of(frame)

    def frame(self, depth: int = 1) -> FrameType | None:
        """The calling program's frame: the innermost of its own, else of a library; None when there is none."""
        frame: FrameType | None = sys._getframe(depth)
        library: FrameType | None = None
        kinds = self._kinds
        for _ in range(DEPTH):
            if frame is None:
                break
            code = frame.f_code
            kind = kinds.get(id(code))
            if kind is None:
                kind = self._kind(code)
            if kind == PROGRAM:
                return frame
            if kind == LIBRARY and library is None:
                library = frame
            frame = frame.f_back
        return library

    def caller(self, through: CodeType | None = None, depth: int = 1) -> Caller:
        """All that the stack tells of the operation that is running; `through` is a function to look out for."""
        frame: FrameType | None = sys._getframe(depth)
        library: FrameType | None = None
        passed = False
        kinds = self._kinds
        for _ in range(DEPTH):
            if frame is None:
                break
            code = frame.f_code
            kind = kinds.get(id(code))
            if kind is None:
                kind = self._kind(code)
            if kind == PROGRAM:
                break
            if code is through:
                passed = True
            if kind == LIBRARY and library is None:
                library = frame
            frame = frame.f_back
        else:
            frame = None
        line = frame or library
        if line is None:
            return made(Caller, (None, 0, "", passed))
        return made(Caller, (line, self.of(line), "" if library is None else _line_of(library), passed))

    def library(self) -> str:
        """The innermost line of a library that the program's line is calling, as "package/file.py:12"; or ""."""
        return self.caller().library

    def library_function(self, known: Container[tuple[str, str]]) -> tuple[str, str] | None:
        """The innermost function of a library that is running, as ("package/file.py", "name"); None without one.

        PyTorch's count only where they are `known`, since it calls functions of its own on the way to any value.
        """
        frame: FrameType | None = sys._getframe(1)
        for _ in range(DEPTH):
            if frame is None:
                return None
            code = frame.f_code
            kind = self._kinds.get(id(code))
            kind = self._kind(code) if kind is None else kind
            if kind == PROGRAM:
                return None
            function = _within_packages(code.co_filename).replace(os.sep, "/"), code.co_name
            if kind == LIBRARY or function in known:
                return function
            frame = frame.f_back
        return None

    def is_program(self, frame: FrameType) -> bool:
        """Whether a frame is the program's own, not a library's."""
        kind = self._kinds.get(id(frame.f_code))
        return (self._kind(frame.f_code) if kind is None else kind) == PROGRAM

    def of(self, frame: FrameType) -> int:
        """The number of a frame's line."""
        if self.stacks:
            return self.table.number(self._with_stack(frame))
        key = id(frame.f_code), frame.f_lasti
        number = self._numbers.get(key)
        if number is None:
            if id(frame.f_code) not in self._kinds:
                self._kind(frame.f_code)  # keeps it
            site = Site(*self._place(frame), frame.f_code.co_qualname)
            number = self._numbers[key] = self.table.number(site)
        return number

    def _with_stack(self, frame: FrameType) -> Site:
        callers: list[tuple[str, int, str]] = []
        caller = frame.f_back
        while caller is not None and len(callers) < FRAMES_KEPT:
            kind = self._kinds.get(id(caller.f_code))
            if (self._kind(caller.f_code) if kind is None else kind) != HIDDEN:
                callers.append((self._file(caller.f_code), caller.f_lineno, caller.f_code.co_qualname))
            caller = caller.f_back
        return Site(*self._place(frame), frame.f_code.co_qualname, tuple(callers))

    def _place(self, frame: FrameType) -> tuple[str, int]:
        """A frame's file and line: in a notebook, a cell's."""
        return (CELLS and in_cell(frame)) or (self._file(frame.f_code), frame.f_lineno)

    def _file(self, code: CodeType) -> str:
        return shown(code.co_filename, self.here)

    def _kind(self, code: CodeType) -> int:
        if len(self._codes) >= MOST_CODES:
            self._kinds.clear()
            self._numbers.clear()
            self._codes.clear()
        file = code.co_filename
        kind = self._kinds[id(code)] = kind_of(file)
        if file.startswith(STAND_INS):  # the finder that offers them says which libraries' functions have run
            for finder in sys.meta_path:
                if run := getattr(finder, "stand_in_ran", None):
                    run(file)
        self._codes.append(code)
        return kind


@lru_cache(4096)  # a question to the file system lets other threads run, where a stack is being looked at
def kind_of(file: str) -> int:
    """Whose code a file holds: PROGRAM, LIBRARY or HIDDEN."""
    if file.startswith(PROGRAMS):
        return PROGRAM
    if file.startswith(("<frozen", OURS)) or any(part in file for part in HIDING):
        return HIDDEN
    if any(part in file for part in PACKAGES):
        return LIBRARY
    return HIDDEN if os.path.realpath(file).startswith(STANDARD) else PROGRAM


def from_line(file: str, line: int, call: Callable[[], int]) -> int:
    """Call a function as from a line of a source that is not Python's: the program's line for all that it does."""
    return int(eval(_calling(file, line), {"call": call}))


@lru_cache(4096)
def _calling(file: str, line: int) -> CodeType:
    return CALL.replace(co_filename=os.path.abspath(file), co_firstlineno=line, co_name="main", co_qualname="main")


def shown(file: str, here: str) -> str:
    """A file's name as sites have it: a notebook's cell, or a path that begins in the folder `here` if it is there."""
    cell = CELLS[0](file) if CELLS else ""
    return cell or file.removeprefix(here)


def in_cell(frame: FrameType) -> tuple[str, int] | None:
    """The notebook's cell and the line in it that a frame is at; None where it is at a file's.

    What a magic runs (`%%time`, `%%timeit`, `%%capture`) is compiled under another name, without the magic's own line;
    what `exec` runs has no text, so the line that calls it counts.
    """
    file = frame.f_code.co_filename
    name = CELLS[0](file)
    if not name and not file.startswith("<"):
        return None
    outermost, caller = frame, frame.f_back
    while caller is not None and kind_of(caller.f_code.co_filename) != PROGRAM:
        caller = caller.f_back
    while caller is not None and caller.f_code.co_filename == file:
        outermost, caller = caller, caller.f_back
        while caller is not None and kind_of(caller.f_code.co_filename) != PROGRAM:
            caller = caller.f_back
    there = in_cell(caller) if caller is not None else None
    if caller is not None and there is not None and outermost.f_code.co_name in BODIES:
        magic = MAGIC.match(linecache.getline(caller.f_code.co_filename, caller.f_lineno))
        if magic is not None:
            return there[0], frame.f_lineno + (magic[1] not in WHOLE)
    return (name, frame.f_lineno) if name else there


def _line_of(frame: FrameType) -> str:
    return f"{_within_packages(frame.f_code.co_filename)}:{frame.f_lineno}"


def _within_packages(file: str) -> str:
    for part in PACKAGES:
        file = file.rpartition(part)[2]
    return file
