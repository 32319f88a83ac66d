"""Run the PyTorch cells of a chapter of Dive into Deep Learning, from the book's Markdown source.

    windtunnel run --gpus 2xV100 chapter.py chapter_computational-performance/multiple-gpus.md

A cell is a block that begins with ```{.python .input}; its first line names the framework (`#@tab pytorch`, or `all`).
"""

import re
import sys
from pathlib import Path

CELL = re.compile(r"^```\{\.python \.input[^\n]*\}\n(.*?)^```", re.MULTILINE | re.DOTALL)
MAGIC = re.compile(r"^[%!].*$", re.MULTILINE)  # what only a notebook understands: %matplotlib inline
TAB = re.compile(r"\A\s*(?:#@tab|%%tab) ([^\n]*)\n")


def cells(source: str) -> list[str]:
    """The blocks that PyTorch's edition of the book runs."""
    found = []
    for block in CELL.findall(source):
        tab = TAB.match(block)
        if tab is not None and any(name in tab[1] for name in ("pytorch", "all")):
            found.append(MAGIC.sub("", block[tab.end() :]))
    return found


def main(path: str) -> None:
    """Execute the cells in one namespace, as a notebook does."""
    names = {"__name__": "__main__"}
    for number, cell in enumerate(cells(Path(path).read_text(encoding="utf-8")), 1):
        exec(compile(cell, f"{path}[{number}]", "exec"), names)


if __name__ == "__main__":
    main(sys.argv[1])
