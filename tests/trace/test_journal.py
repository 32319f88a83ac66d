"""A trace that is written while it grows reads back the same, and as far as it was written where that ended early."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.errors import FileFormatError
from windtunnel.trace import journal
from windtunnel.trace.operation import Kind, Lane, Note, Signature, Site
from windtunnel.trace.rows import WIDTH
from windtunnel.trace.trace import Trace


def add(trace: Trace, number: int) -> None:
    """One kernel on a line of its own."""
    lane = trace.lanes.number(Lane(0, number % 3))
    signature = trace.signatures.number(Signature("aten::add", ((2, 3),), ("float32",), 1, detail=(("tf32", 1),)))
    site = trace.sites.number(Site("train.py", number, "step", (("main.py", 1, "main"),)))
    trace.rows.append((int(Kind.KERNEL), lane, signature, site, number, number, number + 1, 8))


@pytest.fixture
def written(tmp_path: Path) -> tuple[Trace, Path, list[int]]:
    """A trace of three writings and its end, the file, and how long the file was after each."""
    trace, path, sizes = Trace(), tmp_path / "1.journal", []
    pages = journal.Pages(trace)
    data = journal.MAGIC
    for first in (0, 4200, 4201):
        for number in range(first, {0: 4200, 4200: 4201, 4201: 4300}[first]):
            add(trace, number)
        data += b"".join(pages.new())
        sizes.append(len(data))
    trace.notes.append(Note("device-assert", Site("a.py", 3), (("what", "x"),)))
    trace.memory.append((0, 0, 0, 512, 512, 7, 1, 0))
    trace.facts["rank"] = 3
    path.write_bytes(data + b"".join(pages.last()))
    return trace, path, sizes


def test_the_whole_reads_back_the_same(written: tuple[Trace, Path, list[int]], tmp_path: Path) -> None:
    trace, path, _ = written
    found, whole = journal.read(path)
    assert whole
    for one, name in ((trace, "a"), (found, "b")):
        one.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_was_cut_off_reads_up_to_the_last_whole_page(written: tuple[Trace, Path, list[int]]) -> None:
    _, path, sizes = written
    data = path.read_bytes()
    for size, rows in zip(sizes, (4200, 4201, 4300), strict=True):
        for more in (0, 5):
            path.write_bytes(data[: size + more])
            found, whole = journal.read(path)
            assert (len(found), found.end_ns(), whole) == (rows, rows, False)


def test_rows_after_the_end_undo_the_end(written: tuple[Trace, Path, list[int]]) -> None:
    trace, path, _ = written
    pages = journal.Pages(trace)
    path.write_bytes(path.read_bytes() + b"".join(pages.new()))
    assert not journal.read(path)[1]


def test_a_second_end_has_the_memory_anew(written: tuple[Trace, Path, list[int]], monkeypatch) -> None:
    trace, path, _ = written
    monkeypatch.setattr("windtunnel.trace.rows.BLOCK", 2 * WIDTH)
    for number in range(5):
        trace.memory.append((1, 0, 0, 512 * number, 512, 9, 1, 0))
    trace.memory.put(0, 7, 3)
    path.write_bytes(path.read_bytes() + b"".join(journal.Pages(trace).last()))
    found, whole = journal.read(path)
    assert whole
    assert list(found.memory) == list(trace.memory)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1.journal").write_bytes(b"something else")
    with pytest.raises(FileFormatError, match="has no records that this version of windtunnel can read"):
        journal.read(tmp_path / "1.journal")


def test_a_page_of_no_possible_length_ends_what_is_read(written: tuple[Trace, Path, list[int]]) -> None:
    _, path, sizes = written
    for length in (-1, -(1 << 62), 1 << 62):
        path.write_bytes(path.read_bytes()[: sizes[0]] + journal.HEAD.pack(b"R", length))
        found, whole = journal.read(path)
        assert (len(found), whole) == (4200, False)
