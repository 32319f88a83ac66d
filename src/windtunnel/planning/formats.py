"""Writes a plan to a file, in the format of its suffix: HTML, Markdown or JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from windtunnel.errors import UsageError
from windtunnel.planning import page
from windtunnel.planning.result import Plan
from windtunnel.planning.table import render_json, render_markdown

FORMATS: dict[str, Callable[[Plan], str]] = {".html": page.render, ".json": render_json, ".md": render_markdown}


def find(path: str | Path) -> Callable[[Plan], str]:
    """The writer for a file's suffix.

    Raises:
        UsageError: there is no such format, or it needs a package that is missing.
    """
    suffix = Path(path).suffix
    if suffix not in FORMATS:
        raise UsageError(f"a plan cannot be written as {Path(path).name!r}: the suffix is one of {', '.join(FORMATS)}")
    if suffix == ".html":
        page.require()
    return FORMATS[suffix]


def write(path: str | Path, plan: Plan) -> None:
    """Write a plan; its folder is created if necessary.

    Raises:
        UsageError: there is no such format.
        OSError: the file cannot be written.
    """
    text = find(path)(plan)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8", errors="backslashreplace")
