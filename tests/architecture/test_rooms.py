"""The rooms of the seam into PyTorch, and that no file imports another in a circle, imports for types counted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from source import PACKAGE, ROOT, Source, sources

SEAM = "seam/torch/"
BELOW_ALL = {"tags", "type_names", "requirements", "standins", "registry"}
TO_STATE = {"plans", "scratch", "state"}
TO_DISPATCH = TO_STATE | {"dispatch"}
TO_REHEARSAL = TO_DISPATCH | {"rehearsal"}
TO_KERNELS = TO_REHEARSAL | {"kernels"}
ROOMS: dict[str, set[str]] = {
    "tags": set(),
    "type_names": set(),
    "requirements": set(),
    "standins": set(),
    "registry": set(),
    "trials": set(),
    "survivors": set(),
    "plans": set(),
    "scratch": {"plans"},
    "state": {"plans", "scratch"},
    "dispatch": TO_STATE,
    "rehearsal": TO_DISPATCH,
    "kernels": TO_REHEARSAL,
    "triton": TO_DISPATCH,
    "tensor": TO_REHEARSAL,
    "extensions": TO_DISPATCH,
    "compiled": TO_REHEARSAL,
    "cuda": TO_KERNELS,
    "profiler": TO_KERNELS | {"cuda"},
    "distributed": TO_KERNELS | {"cuda"},
    "install": TO_KERNELS | {"tensor", "extensions", "compiled", "cuda", "profiler", "distributed"},
}
"""Each room (or file beside them) and the rooms that it may import; all may import the five first files."""


def room(path: str) -> str:
    """The room of a file of the seam, or the file's own name where it stands beside the rooms."""
    return path.removeprefix(SEAM).split("/")[0].removesuffix(".py")


@cache
def modules() -> dict[str, Source]:
    """Every file of the package by its dotted name."""
    found = {}
    for source in sources():
        parts = ("windtunnel", *source.path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = source
    return found


def imported(source: Source) -> Iterator[str]:
    """The dotted names of the package's files that a file imports."""
    known = modules()
    for _, name in source.imports():
        if name in known:
            yield name
        elif name.rpartition(".")[0] in known:
            yield name.rpartition(".")[0]


def test_a_room_imports_only_rooms_below_it() -> None:
    wrong = []
    for source in (source for source in sources() if str(source).startswith(SEAM)):
        here = room(str(source))
        allowed = ROOMS.get(here, set()) | BELOW_ALL | {here, "__init__"}
        used = {room(str(modules()[name])) for name in imported(source) if str(modules()[name]).startswith(SEAM)}
        if here != "__init__" and used - allowed:
            wrong.append(f"{source} imports {', '.join(sorted(used - allowed))}")
    assert not wrong


def test_no_files_import_one_another_in_a_circle() -> None:
    graph = {name: set(imported(source)) - {name} for name, source in modules().items()}
    while free := {name for name, used in graph.items() if not used}:
        graph = {name: used - free for name, used in graph.items() if name not in free}
    assert not circles(graph), "\n".join(f"{name} imports {', '.join(sorted(used))}" for name, used in graph.items())


def circles(graph: dict[str, set[str]]) -> list[str]:
    """The files that lie on a circle, of a graph in which every file imports another one of it."""
    return [name for name in graph if name in reachable(graph, name)]


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """All files that a file imports, however indirectly."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for name in graph.get(waiting.pop(), ()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


def places() -> dict[str, list[str]]:
    """What the table "Where is ...?" of docs/architecture.md has rows for, and the places that it names."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text[text.index("Where is ...?") : text.index("**Who watches.**")]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)
    return {what: re.findall(r"`(\w+(?:/\w*)+|\w+\.py)`", where) for what, where in rows if what not in ("what", "---")}


def is_there(place: str) -> bool:
    """Whether a place is a folder or a file (its ending may be left out), of the package or the seam into PyTorch."""
    name = place if place.endswith(("/", ".py")) else f"{place}.py"
    return any((PACKAGE / at / name).exists() for at in ("", SEAM))


def test_what_the_documentation_sends_readers_to_is_there() -> None:
    assert len(places()) >= 30
    assert not [what for what, named in places().items() if not named]
    assert not [(what, place) for what, named in places().items() for place in named if not is_there(place)]
