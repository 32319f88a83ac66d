"""The words that people wrote in docs/*.md, a page a line, without what commands write: pages, tables, comments.

python -m tools.docs.words
"""

from __future__ import annotations

import re
from pathlib import Path

from tools import ROOT
from tools.docs.figures import TABLE

GENERATED = {"conformance.md", "conformance-suites.md", "libraries.md", "mission.md", "programs.md"}
"""Pages that a command writes as a whole."""
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
WORD = re.compile(r"\S*\w\S*")


def pages() -> list[Path]:
    """The pages that people write."""
    return [path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in GENERATED]


def words(text: str) -> int:
    """The words of a page, its code and commands included, but not the bars of its tables."""
    return len(WORD.findall(COMMENT.sub("", TABLE.sub("", text))))


def main() -> None:
    """Print the longest page first, and all pages together."""
    counted = {path.name: words(path.read_text(encoding="utf-8")) for path in pages()}
    for name in sorted(counted, key=counted.__getitem__, reverse=True):
        print(f"{counted[name]:7,} {name}")
    print(f"{sum(counted.values()):7,} in all")


if __name__ == "__main__":
    main()
