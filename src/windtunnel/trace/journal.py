"""A trace as it is written while the program runs: pages appended to a file, readable wherever the writing ended.

A page is one byte that names its kind, eight bytes of length, and its content: the new entries of the tables, new rows,
facts, or the mark that the process ended in order. A reader takes the whole pages; what a killed process had begun to
write is not one. Rows of the allocators' history come with the end, since their owners are known late.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

from windtunnel import foreign
from windtunnel.errors import FORMER_NAME, FileFormatError, renamed
from windtunnel.trace.plain import Json
from windtunnel.trace.rows import WIDTH
from windtunnel.trace.schema import Entries
from windtunnel.trace.trace import Trace, parse

MAGIC = b"windtunnel-journal 2\n"
HEAD = struct.Struct("<cq")
TABLES, ROWS, MEMORY, FACTS, SOURCES, END = b"T", b"R", b"M", b"F", b"S", b"E"
ROW = WIDTH * 8
TABLE_NAMES = ("lanes", "signatures", "sites", "hazards", "notes")


class Pages:
    """What has been added to a trace since it was last asked for, as bytes to append."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.written = 0
        """Rows that are in pages already."""
        self._entries = dict.fromkeys(TABLE_NAMES, 0)

    def new(self) -> bytes:
        """Pages of the rows that came since the last call, after the entries of the tables that they refer to."""
        found = self.trace.rows.since(self.written)
        self.written += len(found)
        entries = {}
        for name, known in self._entries.items():
            added = list(getattr(self.trace, name)[known:])
            if added:
                entries[name] = added
                self._entries[name] = known + len(added)
        pages = _page(TABLES, _json(entries)) if entries else b""
        return pages + _page(ROWS, found.to_bytes()) if len(found) else pages

    def facts(self) -> bytes:
        """A page of the facts as they are now; the last one counts."""
        return _page(FACTS, _json(self.trace.facts))

    def last(self) -> bytes:
        """What is still missing, and the mark that nothing is."""
        memory = _page(MEMORY, self.trace.memory.to_bytes()) if len(self.trace.memory) else b""
        new = self.new()
        self.trace.keep_sources()
        return new + memory + self.facts() + _page(SOURCES, _json(self.trace.sources)) + _page(END, b"")


def read(path: str | Path) -> tuple[Trace, bool]:
    """The trace in a journal, and whether its process ended in order, so that nothing is missing.

    Raises:
        FileFormatError: the file is not a journal of ours.
        OSError: the file cannot be read.
    """
    data = foreign.read_bytes(path)
    if data.startswith(FORMER_NAME.encode()):
        raise FileFormatError(renamed(f"the journal {path}", "run the program again"))
    if not data.startswith(MAGIC):
        raise FileFormatError(f"{path} has no records that this version of windtunnel can read: run the program again")
    header: Json = {name: [] for name in TABLE_NAMES}
    rows, memory = bytearray(), b""
    kind = b""
    position = len(MAGIC)
    while position + HEAD.size <= len(data):
        kind, length = HEAD.unpack_from(data, position)
        page = data[position + HEAD.size : position + HEAD.size + length]
        if not 0 <= length <= len(page):
            break
        position += HEAD.size + length
        match kind:
            case b"T":
                for name, entries in foreign.typed(foreign.from_json(page, path), Entries, path, "is damaged").items():
                    header[name] += entries
            case b"R":
                rows += page
            case b"M":
                memory = page
            case b"F":
                header["facts"] = foreign.from_json(page, path)
            case b"S":
                header["sources"] = foreign.from_json(page, path)
    rows, memory = rows[: len(rows) // ROW * ROW], memory[: len(memory) // ROW * ROW]
    header |= {"rows": len(rows) // ROW, "memory": len(memory) // ROW}
    trace = parse(header, bytes(rows) + memory, str(path))
    return trace, kind == END and position == len(data)


def _page(kind: bytes, content: bytes) -> bytes:
    return HEAD.pack(kind, len(content)) + content


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
