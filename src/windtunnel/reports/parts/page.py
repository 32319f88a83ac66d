"""What pages of HTML share: one file that needs no network, with Jinja2's escaping and charts of our own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources, util
from typing import TYPE_CHECKING

from windtunnel.errors import UsageError
from windtunnel.trace.units import join_units

if TYPE_CHECKING:
    import jinja2

PACKAGES = ("jinja2",)


def require(packages: Sequence[str] = PACKAGES) -> None:
    """Raise UsageError when a package that a page is made with is missing."""
    missing = [name for name in packages if util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"an HTML report is made with {' and '.join(missing)}, which is not installed: "
            "pip install 'windtunnel[report]' brings it, or ask for a .json, .md or .txt report"
        )


def environment() -> jinja2.Environment:
    """Jinja2, with everything escaped that a template does not call safe, and numbers kept with their units."""
    import jinja2

    return jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: join_units(value) if type(value) is str else value,
    )


def stylesheet() -> str:
    """The style of every page, for light and dark screens."""
    return template("report.css")


def template(name: str) -> str:
    """One of the files that pages are made of: a style, a script, or a template of Jinja2."""
    return (resources.files("windtunnel.reports") / "templates" / name).read_text("utf-8")


def embedded(data: object) -> str:
    """JSON that may stand inside a script element: no `<`, so neither an end tag nor a comment begins in it."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
