"""What a person, another tool or a machine gets to see: one file a format, one summary for all of them.

Listing this folder is the registry: a module that has a `SUFFIX` is a format, and its `render(trace, findings,
**options)` gives the text or the bytes. A format with `PER_PROCESS = True` is written once a process of a run; the
others show all processes together.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from windtunnel.errors import UsageError
from windtunnel.trace.finding import Finding
from windtunnel.trace.trace import Trace


class Format(Protocol):
    """What a module of this folder offers when it is a format."""

    SUFFIX: str

    def render(self, trace: Trace, findings: Sequence[Finding]) -> str | bytes:
        """The whole report."""


@functools.cache
def formats() -> dict[str, Format]:
    """Every format by its suffix, the longest suffix first."""
    found: dict[str, Format] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "SUFFIX"):
            found[module.SUFFIX] = cast(Format, module)
    return dict(sorted(found.items(), key=lambda item: (-len(item[0]), item[0])))


def find(path: str | Path) -> Format:
    """The format that a file's name asks for; the longest suffix wins.

    Raises:
        UsageError: no format has a suffix that the name ends in, or the format needs a package that is missing.
    """
    name = Path(path).name
    for suffix, module in formats().items():
        if name.endswith(suffix):
            require = getattr(module, "require", None)
            if require is not None:
                require()
            return module
    known = ", ".join(sorted(formats()))
    raise UsageError(f"no report format fits {name!r}: the suffix decides, and it must be one of {known}")


def write(path: str | Path, trace: Trace, findings: Sequence[Finding]) -> None:
    """Write a report in the format of the path's suffix, making its folder when there is none.

    Raises:
        UsageError: the suffix is unknown, or the format needs a package that is not installed.
        OSError: the file cannot be written.
    """
    rendered = find(path).render(trace, findings)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # A file's name may hold bytes that are no UTF-8, which Python keeps as halves of characters.
    target.write_bytes(rendered.encode(errors="backslashreplace") if isinstance(rendered, str) else rendered)
