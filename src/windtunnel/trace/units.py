"""Numbers as people read them: times, sizes and counts, in plain text."""

from __future__ import annotations

import re

_TIMES = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|(?:[KMGT]i?)?B(?:/s)?|[nµm]?s)(?!\w))")


def format_ns(time_ns: float) -> str:
    """A time given in nanoseconds, with three significant digits: "1.24 ms"."""
    return _scaled(time_ns, _TIMES, "ns")


def format_bytes(size_bytes: float) -> str:
    """A size given in bytes, in binary units with three significant digits: "1.50 MiB"."""
    return _scaled(size_bytes, _SIZES, "B")


FAR = 0.4
"""The band of a step from which on nothing was measured near what it is made of."""


def far_words(band: float | None) -> str:
    """What is said of a time with such a band: "no measurement near this: a factor of 2.5"; else empty."""
    if band is None or band < FAR:
        return ""
    return f"no measurement near this: a factor of {1.0 / max(0.1, 1.0 - band):.2g}"


def format_share(share: float) -> str:
    """A share between 0 and 1 as a percentage: "12 %", "0.4 %" below one, and "<0.01 %"."""
    percent = 100 * share
    if 0 < percent < 0.01:
        return "<0.01 %"
    return f"{percent:.0f} %" if percent >= 1 or percent == 0 else f"{percent:.1g} %"


def plural(count: int, noun: str) -> str:
    """The count and its noun: "1 copy", "3 copies", "2,000 synchronizations"."""
    if count != 1:
        noun = noun[:-1] + "ies" if noun.endswith("y") and noun[-2] not in "aeiou" else noun + "s"
    return f"{count:,} {noun}"


def times(count: int) -> str:
    """How often: "once", "twice", "2,000 times"."""
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def join_units(text: str, joint: str = "\N{NO-BREAK SPACE}") -> str:
    """The text with `joint` for the space between a number and its unit, so that no line ends between the two."""
    return _BEFORE_UNIT.sub(joint, text)


def _scaled(value: float, units: tuple[tuple[int, str], ...], base: str) -> str:
    for size, name in units:
        if abs(value) >= size:
            scaled = value / size
            digits = 2 if abs(scaled) < 10 else 1 if abs(scaled) < 100 else 0
            return f"{scaled:,.{digits}f} {name}"
    return f"{value:,.0f} {base}"
