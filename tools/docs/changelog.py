"""Assemble CHANGELOG.md from changes/*.md at a release, which removes them.

    python -m tools.docs.changelog            # print what the next release will say
    python -m tools.docs.changelog 0.2.0      # write it above the last release, and remove the fragments

A fragment is one file a change, `changes/NAME.md`: what a user can do or will notice, in a sentence or a few, as they
stand in the changelog after the bullet.
"""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path

from tools import ROOT

BEFORE = "\n## "
"""What the newest release begins with in CHANGELOG.md."""


def fragments(root: Path) -> list[Path]:
    """Every fragment, by name."""
    return sorted(path for path in (root / "changes").glob("*.md") if path.name != "README.md")


def entry(root: Path, title: str) -> str:
    """The changes as a section of the changelog."""
    texts = (path.read_text(encoding="utf-8").strip() for path in fragments(root))
    return f"## {title}\n\n" + "\n".join("- " + text.replace("\n", "\n  ") for text in texts) + "\n"


def release(root: Path, version: str, today: datetime.date) -> None:
    """Write the section above the last release's, and remove the fragments."""
    path = root / "CHANGELOG.md"
    head, _, rest = path.read_text(encoding="utf-8").partition(BEFORE)
    section = entry(root, f"{version} ({today.isoformat()})")
    path.write_text(f"{head}\n{section}{BEFORE}{rest}", encoding="utf-8")
    for fragment in fragments(root):
        fragment.unlink()


def main(arguments: list[str]) -> int:
    """Print or write; the exit status."""
    if not fragments(ROOT):
        print("changes/ holds no change since the last release", file=sys.stderr)
        return 1
    if not arguments:
        print(entry(ROOT, "Unreleased"), end="")
        return 0
    if not re.fullmatch(r"\d+\.\d+\.\d+", arguments[0]):
        print(f"{arguments[0]} is no version: give one like 0.2.0", file=sys.stderr)
        return 2
    release(ROOT, arguments[0], datetime.datetime.now(datetime.UTC).date())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
