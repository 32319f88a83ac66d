"""`tools` is a package: imported by name, without a circle, and its islands know only those that they name here."""

from __future__ import annotations

from functools import cache

from source import ROOT, Source, tools
from test_rooms import circles
from test_sizes import FUNCTION_LINES, MODULE_LINES, code_lines

MAY_IMPORT: dict[str, set[str]] = {
    "fitting": set(),
    "corpus": {"hardware"},
    "calibration": {"corpus", "docs", "fitting"},
    "compare": {"calibration", "corpus", "docs"},
    "exam": {"calibration", "corpus", "docs", "fitting"},
    "programs": {"docs"},
    "advice": {"programs"},
}
"""The islands (folders and files) that an island may import beside itself; those that are not named import none."""
AS_PYTHON_DOES = {"advice/rehearsal.py", "conformance/snapshots.py"}
"""They run a program of others in their own process, with the program's folder on the path as Python puts it there."""
READ_BY_PYTORCH = {"conformance/upstream/journal.py", "conformance/upstream/stub.py"}
"""Plugins in processes of PyTorch's tests, whose own `tools` they must not hide: they import nothing of here."""


@cache
def modules() -> dict[str, Source]:
    """Every file by its dotted name."""
    names = {".".join(source.path.relative_to(ROOT).with_suffix("").parts): source for source in tools()}
    return {name.removesuffix(".__init__"): source for name, source in names.items()}


def imported(source: Source) -> set[str]:
    """The dotted names of the files of `tools` that a file imports."""
    known = modules()
    names = {name if name in known else name.rpartition(".")[0] for _, name in source.imports()}
    return names & known.keys() - {"tools"}


def test_nothing_edits_the_path_of_imports() -> None:
    found = {str(source) for source in tools() if "sys.path" in source.text}
    assert found == AS_PYTHON_DOES


def test_an_island_imports_only_what_the_table_allows() -> None:
    wrong = [
        f"{source} imports {name}"
        for source in tools()
        for name in imported(source)
        if name.split(".")[1] not in MAY_IMPORT.get(source.layer, set()) | {source.layer}
    ]
    assert not wrong


def test_no_files_import_one_another_in_a_circle() -> None:
    graph = {name: imported(source) - {name} for name, source in modules().items()}
    while free := {name for name, used in graph.items() if not used}:
        graph = {name: used - free for name, used in graph.items() if name not in free}
    assert not circles(graph), "\n".join(f"{name} imports {', '.join(sorted(used))}" for name, used in graph.items())


def test_what_pytorchs_tests_load_imports_nothing_of_here() -> None:
    alone = [source for source in tools() if str(source) in READ_BY_PYTORCH]
    assert len(alone) == len(READ_BY_PYTORCH)
    assert not [str(source) for source in alone for _, name in source.imports() if name.startswith("tools")]


def test_modules_and_functions_are_short() -> None:
    lengths = {str(source): len(source.text.splitlines()) for source in tools()}
    assert not {name: lines for name, lines in lengths.items() if lines > MODULE_LINES}
    functions = {f"{source}:{f.lineno} {f.name}": code_lines(f) for source in tools() for f in source.functions()}
    assert not {name: lines for name, lines in functions.items() if lines > FUNCTION_LINES}
