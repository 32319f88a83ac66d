"""The program's own text around the lines that a trace names, taken when the program ran.

A report never opens a file that a trace names: the trace may come from anywhere, and so may the name.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from windtunnel.trace.operation import Hazard, Note, Site

AROUND = 3
"""Lines kept before and after each line that the trace names."""
MOST_CHARACTERS = 400
"""Longest line that is kept, characters; nobody writes longer ones by hand."""
MOST_FILE_BYTES = 16 << 20
STEERING = re.compile(r"\s*(if|elif|while|assert)\b")
"""How a line begins whose value decides what runs next."""

Sources = dict[str, dict[int, str]]
"""The text of lines, by file and number."""


class Named(Protocol):
    """What names lines of a program: a trace."""

    @property
    def sites(self) -> Sequence[Site]:
        """The lines that rows refer to."""

    @property
    def hazards(self) -> Sequence[Hazard]:
        """Accesses without order."""

    @property
    def notes(self) -> Sequence[Note]:
        """Facts about the program."""


def places(trace: Named) -> list[Site]:
    """Every line that a trace names."""
    of_hazards = [site for hazard in trace.hazards for site in (hazard.first, hazard.second, hazard.allocated)]
    return [*trace.sites, *of_hazards, *(note.site for note in trace.notes)]


def collect(sources: Sources, sites: Iterable[Site], folder: str) -> None:
    """Take the lines around some sites from this machine's files into `sources`.

    Names that are relative are those of `folder`. What is known already stays, files that cannot be read are left out.
    """
    wanted: dict[str, set[int]] = {}
    for site in sites:
        if site.file and site.line > 0:
            wanted.setdefault(site.file, set()).add(site.line)
    for file, numbers in wanted.items():
        known = sources.setdefault(file, {})
        missing = [number for number in numbers if number not in known]
        lines = _lines(file, folder) if missing else []
        for number in missing:
            for near in range(max(1, number - AROUND), min(len(lines), number + AROUND) + 1):
                known.setdefault(near, lines[near - 1].rstrip("\n")[:MOST_CHARACTERS])


def whole(file: str, folder: str) -> str:
    """The whole of a file of this machine; empty where it cannot be read."""
    return "".join(_lines(file, folder))


def _lines(file: str, folder: str) -> list[str]:
    if file in linecache.cache:  # a cell of a notebook, or what `exec` was given
        return linecache.getlines(file)
    path = Path(folder, file)
    try:
        if not path.is_file() or path.stat().st_size > MOST_FILE_BYTES:
            return []
    except (OSError, ValueError):  # no folder to look in, a name with a null byte
        return []
    return linecache.getlines(str(path))
