"""What went wrong between the ranks of a finished run, according to the ledgers that they left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from windtunnel.errors import FileFormatError
from windtunnel.ranks.calls import Ending, State
from windtunnel.ranks.judge import judge
from windtunnel.ranks.ledger import SUFFIX, Entry, read
from windtunnel.ranks.replicas import unequal
from windtunnel.ranks.samplers import disagreeing
from windtunnel.trace.operation import Note


def wrong(folder: Path, failed: bool, interrupted: bool = False) -> list[Note]:
    """What the ranks of each job in a run's folder reported, and if the run `failed`, what its ledgers show.

    Ctrl-C ends one rank after another, so in an `interrupted` run a rank that ended while others waited is not
    reported.
    """
    found: list[Note] = []
    for entries in _jobs(folder):
        said = [note for entry in entries for note in entry.notes]
        if interrupted:
            said = [note for note in said if not _by_interrupt(note)]
        elif not said and failed:
            said = judge([entry.rank for entry in map(_ended, entries)])
        found += [note for note in said if note not in found]
    return _latest(found)


def unlike(folder: Path) -> list[Note]:
    """In what the ranks of each job differ though they should not, which ends no run: samplers, and first weights."""
    found: list[Note] = []
    for entries in _jobs(folder):
        found += disagreeing({entry.rank.rank: entry.epochs for entry in entries})
        found += unequal({entry.rank.rank: entry.weights for entry in entries})
    return found


def _jobs(folder: Path) -> list[list[Entry]]:
    """The ledgers of a run's folder, by job."""
    jobs: dict[str, list[Entry]] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            entry = read(path)
        except (FileFormatError, OSError):  # its process ended while it made it, or it is the program's own
            continue
        jobs.setdefault(entry.job, []).append(entry)
    return list(jobs.values())


def by_keyboard(note: Note) -> bool:
    """Whether it is of a rank that somebody interrupted."""
    return str(dict(note.detail).get("text", "")).startswith("KeyboardInterrupt")


def _by_interrupt(note: Note) -> bool:
    by = by_keyboard(note) or dict(note.detail).get("how") in ("killed", "absent")
    return note.code in ("rank-ended", "collective-missing") and by


def _ended(entry: Entry) -> Entry:
    """A rank after the run: one that waited was ended because of another; any other without an ending was killed.

    Ranks that waited still count as waiting: what they waited for shows which rank ended first.
    """
    waits = any(call.state is State.WAITING for call in entry.rank.calls)
    if entry.rank.ending is not None or waits:
        return entry
    return entry._replace(rank=entry.rank._replace(ending=Ending("killed")))


def _latest(notes: Sequence[Note]) -> list[Note]:
    """One note per incident: ranks that recorded it at different moments know more or less about it."""
    kept: dict[tuple[str, object, object], Note] = {}
    for note in notes:
        detail = dict(note.detail)
        kept[note.code, detail.get("rank", note.site), detail.get("number", 0)] = note
    return list(kept.values())
