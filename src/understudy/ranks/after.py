"""What was wrong between the ranks of a run that has ended, from the ledgers that they left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from understudy.errors import FileFormatError
from understudy.ranks.calls import Ending, State
from understudy.ranks.judge import judge
from understudy.ranks.ledger import SUFFIX, Entry, read
from understudy.trace.operation import Note


def wrong(folder: Path, failed: bool, interrupted: bool = False) -> list[Note]:
    """What the ranks of each job in a run's folder found wrong; of a run that `failed`, what is wrong by its end.

    Ctrl-C ends one rank after the other: that a rank of an `interrupted` run ended while others waited is not wrong.
    """
    jobs: dict[str, list[Entry]] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            entry = read(path)
        except (FileFormatError, OSError):  # its process ended while it made it, or it is the program's own
            continue
        jobs.setdefault(entry.job, []).append(entry)
    found: list[Note] = []
    for entries in jobs.values():
        said = [note for entry in entries for note in entry.notes]
        if interrupted:
            said = [note for note in said if not _by_interrupt(note)]
        elif not said and failed:
            said = judge([entry.rank for entry in map(_ended, entries)])
        found += [note for note in said if note not in found]
    return _latest(found)


def _by_interrupt(note: Note) -> bool:
    detail = dict(note.detail)
    by = str(detail.get("text", "")).startswith("KeyboardInterrupt") or detail.get("how") in ("killed", "absent")
    return note.code in ("rank-ended", "collective-missing") and by


def _ended(entry: Entry) -> Entry:
    """A rank after the end: one that waited was ended because another one was, any other that says nothing was killed.

    Those that waited count as waiting still: what they waited for tells who ended first.
    """
    waits = any(call.state is State.WAITING for call in entry.rank.calls)
    if entry.rank.ending is not None or waits:
        return entry
    return entry._replace(rank=entry.rank._replace(ending=Ending("killed")))


def _latest(notes: Sequence[Note]) -> list[Note]:
    """One note for each incident: ranks that wrote it down at different moments know more or less of it."""
    kept: dict[tuple[str, object, object], Note] = {}
    for note in notes:
        detail = dict(note.detail)
        kept[note.code, detail.get("rank", note.site), detail.get("number", 0)] = note
    return list(kept.values())
