"""Shared variables of a class with a constructor, which nvcc leaves alone and clang refuses: those of `cuda::barrier`.

Each declaration that clang names becomes bytes of the same size and alignment, and a reference to them as that class.
"""

from __future__ import annotations

import os
import re

REFUSED = re.compile(
    r"^(.+?):(\d+):(\d+): error: (?:initialization is not supported for __shared__ variables|"
    r"__shared__ variable .*destructor)", re.MULTILINE
)  # fmt: skip
LINE = re.compile(r'^\s*#\s*(?:line\s+)?(\d+)\s*(?:"([^"]*)")?')
QUALIFIER = r"(?:alignas\s*\([^)]*\)|__align__\s*\([^)]*\)|__attribute__\s*\(\([^)]*\)\)|static)"
BEFORE = re.compile(rf"__shared__\s+((?:{QUALIFIER}\s*)*)(.+?)\s*$", re.DOTALL)
AFTER = re.compile(r"(\w+)\s*((?:\[[^\]]*\]\s*)*);")


def rewritten(text: str, file: str, errors: str) -> str | None:
    """The text of a file without the declarations that clang refuses in it; None if it has none that can be changed."""
    lines = text.split("\n")
    numbers, here, number = {}, file, 0
    for at, line in enumerate(lines):
        number += 1
        numbers[here, number] = at
        named = LINE.match(line)
        if named:
            here, number = named[2] or here, int(named[1]) - 1
    changed = False
    places = sorted({(f, int(n), int(c)) for f, n, c in REFUSED.findall(errors)}, key=lambda one: -one[2])
    for name, number, column in places:
        same = os.path.basename(name)
        place = next((a for (f, n), a in numbers.items() if n == number and os.path.basename(f) == same), -1)
        found = _changed(lines[place], column - 1) if place >= 0 else None
        if found is not None:
            lines[place], changed = found, True
    return "\n".join(lines) if changed else None


def _changed(line: str, column: int) -> str | None:
    start = line.rfind("__shared__", 0, column)
    before, after = BEFORE.match(line[start:column]) if start >= 0 else None, AFTER.match(line, column)
    if not before or not after:
        return None
    name, dimensions = after[1], after[2].strip()
    kind, qualifiers = f"{name}_windtunnel", before[1].replace("static", "")
    made = (
        f"typedef {before[2]} {kind}{dimensions}; __shared__ {qualifiers}alignas({kind}) unsigned char "
        f"{name}_bytes[sizeof({kind})]; {kind} &{name} = *({kind} *){name}_bytes;"
    )
    return line[:start] + made + line[after.end() :]
