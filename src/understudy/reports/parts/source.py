"""The program's own text around a line, for the reports that show it."""

from __future__ import annotations

import linecache
from typing import NamedTuple

from understudy.trace.operation import Site

AROUND = 3


class Line(NamedTuple):
    """One line of a program, as text."""

    number: int
    text: str
    marked: bool


def around(site: Site) -> list[Line]:
    """The lines around a site, or none where the file cannot be read."""
    if not site.file or site.line < 1:
        return []
    lines = linecache.getlines(site.file)
    if len(lines) < site.line:
        return []
    first = max(1, site.line - AROUND)
    return [
        Line(number, text.rstrip("\n"), number == site.line)
        for number, text in enumerate(lines[first - 1 : site.line + AROUND], first)
    ]
