"""The documentation's pages, as `windtunnel explain PAGE` prints them.

A wheel carries them as `windtunnel/pages`; in a checkout they are the folder `docs`.
"""

from __future__ import annotations

from pathlib import Path

INSTALLED = Path(__file__).with_name("pages")
CHECKOUT = Path(__file__).parents[2] / "docs"
OTHERS = {"skill": "SKILL.md", "pages": "llms.txt"}
"""By name: what is for programs and agents."""


def page(name: str) -> str | None:
    """The text of a page; None where there is none of that name."""
    folder = INSTALLED if INSTALLED.is_dir() else CHECKOUT
    file = OTHERS.get(name, f"{name}.md")
    path = folder.parent / file if folder is CHECKOUT and name == "skill" else folder / file
    return path.read_text("utf-8") if Path(file).name == file and path.is_file() else None
