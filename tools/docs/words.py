"""The words that people wrote in docs/*.md, a page a line: neither pages nor tables that a command writes, nor comments.

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


def pages() -> list[Path]:
    """The pages that people write."""
    return [path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in GENERATED]


def words(text: str) -> int:
    """The words of a page, its code and commands included."""
    return len(COMMENT.sub("", TABLE.sub("", text)).split())


def main() -> None:
    """Print the longest page first, and all pages together."""
    counted = {path.name: words(path.read_text(encoding="utf-8")) for path in pages()}
    for name in sorted(counted, key=counted.__getitem__, reverse=True):
        print(f"{counted[name]:7,} {name}")
    print(f"{sum(counted.values()):7,} in all")


if __name__ == "__main__":
    main()
