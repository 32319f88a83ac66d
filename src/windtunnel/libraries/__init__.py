"""Stand-ins for libraries that a program imports and this machine does not have, one file or folder a library.

A stand-in is found under the library's own name, after everything that is installed: a real one wins, unless its
kernels are a binary for GPUs. Listing this folder is the registry. A stand-in is an ordinary package with a
`__version__`, whose interface it answers for; its docstring says which part of it.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import util
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from windtunnel import described
from windtunnel.errors import MissingNameError, UnsupportedError, UsageError
from windtunnel.libraries import _binaries, _kernels
from windtunnel.variables import OPTIONS
from windtunnel.version import installed

if TYPE_CHECKING:
    from importlib.metadata import Distribution, DistributionFinder

FOLDER = Path(__file__).parent
PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
VERSION = re.compile(r'^__version__ = "([\w.]+)"', re.MULTILINE)
NOT_IN_MODULE = re.compile(r"cannot import name '(\w+)'")
DISTRIBUTION = re.compile(r'^DISTRIBUTION = "([\w.]+)"', re.MULTILINE)


class Library(NamedTuple):
    """A stand-in: the library's name, the file that stands in, the version whose interface it answers for.

    `distribution` is what pip calls it.
    """

    name: str
    file: Path
    version: str
    distribution: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def names() -> list[str]:
    """The libraries that there are stand-ins for."""
    found = [path for path in FOLDER.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return sorted(path.stem for path in found if not path.stem.startswith("_"))


def find(name: str) -> Library | None:
    """The stand-in of that name."""
    for file in (FOLDER / name / "__init__.py", FOLDER / f"{name}.py"):
        if not name.startswith("_") and file.is_file():
            text = file.read_text(encoding="utf-8")
            version, distribution = VERSION.search(text), DISTRIBUTION.search(text)
            return Library(name, file, version[1] if version else "", distribution[1] if distribution else name)
    return None


def require(wanted: Iterable[str]) -> tuple[str, ...]:
    """These names as they are.

    Raises:
        UsageError: there is no stand-in of one of them.
    """
    chosen = tuple(wanted)
    for name in chosen:
        if name not in names():
            raise UsageError(
                f"there is no stand-in for {name!r} to leave out: there are those for {', '.join(names())}"
            )
    return chosen


def gives_way(name: str) -> bool:
    """Whether the library is installed and its kernels are a binary for GPUs."""
    library = find(name)
    return library is not None and _binaries.has_one(name, library.distribution)


class Finder:
    """The last finder of `sys.meta_path`: what nothing else has found is looked for here.

    `said` is told of each that the program imports. Libraries import what they find, used or not, so one that only they
    have imported is told of when an operation comes from it (`stand_in_ran`, which `seam/sites.py` calls).
    """

    def __init__(self, said: Callable[[Library], None]) -> None:
        self._said = said
        self._waiting: dict[str, Library] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The module of a stand-in, which is loaded under the library's name."""
        library = None if "." in name or name in _left_out() else find(name)
        if library is None:
            return None
        found = util.spec_from_file_location(name, library.file)
        if found is not None and found.loader is not None:
            _says(found.loader, partial(self._imported, library))
        return found

    def _imported(self, library: Library) -> None:
        if any(part in _importer() for part in PACKAGES):
            self._waiting[library.name] = library
        else:
            self._said(library)

    def stand_in_ran(self, file: str) -> None:
        """An operation came from this file of a stand-in."""
        library = self._waiting.pop(Path(file).relative_to(FOLDER).parts[0].removesuffix(".py"), None)
        if library is not None:
            self._said(library)

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:
        """What `importlib.metadata` knows of them."""
        from windtunnel.libraries._metadata import Standin

        wanted = context.name and context.name.replace("-", "_")
        packages: dict[tuple[str, str], list[str]] = {}
        for library in map(find, names()):
            if library is not None and library.name not in _left_out() and wanted in (None, library.distribution):
                packages.setdefault((library.distribution, library.version), []).append(library.name)
        for (distribution, version), inside in packages.items():
            yield Standin(distribution, version, inside)


class FirstFinder:
    """The first finder of `sys.meta_path`: an installed library whose kernels are a binary for GPUs gives way."""

    def __init__(self, finder: Finder) -> None:
        self.last = finder
        self._names = frozenset(names()) - frozenset(_left_out())

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The module of such a library's stand-in."""
        return self.last.find_spec(name) if name in self._names and gives_way(name) else None


def _says(loader: Loader, say: Callable[[], None]) -> None:
    """Let a loader tell that its module is run: programs also ask for modules that they do not import."""
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        say()
        run(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]


def _importer() -> str:
    """The file that imports what is being loaded."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith("<frozen importlib") and file != importlib.__file__:
            return file
        frame = frame.f_back
    return ""


def _left_out() -> list[str]:
    """What `--without` names."""
    return list(json.loads(os.environ.get(OPTIONS) or "{}").get("without", ()))


def offer(said: Callable[[Library], None]) -> Finder:
    """Let this process find the stand-ins, until `withdraw`, and what is said of operators in binaries."""
    finder = Finder(said)
    sys.meta_path.append(finder)
    sys.meta_path.insert(0, FirstFinder(finder))  # type: ignore[arg-type]
    described.also(_kernels.describe)
    return finder


def withdraw(finder: Finder) -> None:
    """Take the finder out again, and what goes first for it."""
    sys.meta_path[:] = [one for one in sys.meta_path if one is not finder and getattr(one, "last", None) is not finder]


def sentence(library: str) -> str:
    """What a report says of a stand-in, such as that of "d2l 1.0.3", which a program has imported."""
    name = library.partition(" ")[0]
    found = find(name)
    there = None if found is None else installed(found.distribution)
    why = f"{name} {there} has its kernels in a binary for GPUs" if there else f"{name} is not installed"
    instead = f"--without {name}{' takes the installed one' if there else ''}"
    return f"{why}: the program ran with windtunnel's stand-in for part of {library} ({instead})"


def unanswered(library: str, what: str, instead: str = "leave it out") -> NoReturn:
    """Refuse an argument that the library takes and its stand-in does not.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(f"windtunnel's stand-in for {library} does not answer {what}: {instead}")


def refuse(library: str, module: str, name: str, instead: str = "") -> NoReturn:
    """Refuse a name that the library has and its stand-in has not, or that neither has.

    Raises:
        MissingNameError: always.
    """
    raise MissingNameError(_lacking(library, f"{module}.{name}", instead), name=name)


def explained(error: BaseException) -> str:
    """What is said of an error that ended the program, where a library's stand-in or its binary is why; else ""."""
    return (_missing(error) if isinstance(error, ImportError) else "") or _binaries.sentence(error)


def _missing(error: ImportError) -> str:
    """That a stand-in has no such name, where an import failed for which Python has words of its own."""
    name = error.name or ""
    library = find(name.partition(".")[0])
    module = sys.modules.get(library.name) if library is not None else None
    if library is None or module is None or not (module.__file__ or "").startswith(str(FOLDER)):
        return ""
    if isinstance(error, ModuleNotFoundError):
        return _lacking(str(library), name)
    found = NOT_IN_MODULE.search(str(error))
    return _lacking(str(library), f"{name}.{found[1]}") if found else ""


def _lacking(library: str, what: str, instead: str = "") -> str:
    instead = instead or f"leave it out, or the stand-in (--without {what.partition('.')[0]})"
    return f"{what} is not in windtunnel's stand-in for {library}: {instead}"
