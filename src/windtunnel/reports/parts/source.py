"""The program's own text around a line, for the reports that show it."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from windtunnel.trace.operation import Site
from windtunnel.trace.sources import AROUND
from windtunnel.trace.trace import Trace


class Line(NamedTuple):
    """One line of a program, as text."""

    number: int
    text: str
    marked: bool


def around(trace: Trace, site: Site) -> list[Line]:
    """The lines around a site without their common indent, or none where the trace does not hold them."""
    known = trace.near(site)
    if site.line not in known:
        return []
    near = [number for number in range(site.line - AROUND, site.line + AROUND + 1) if number in known]
    texts = textwrap.dedent("\n".join(known[number] for number in near)).split("\n")
    return [Line(number, text, number == site.line) for number, text in zip(near, texts, strict=True)]
