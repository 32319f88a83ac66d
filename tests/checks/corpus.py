"""The corpus: Markdown pages, each with one program and marks on the lines where something is to be found.

A page's program may use these marks, each at the end of a line:

- `# finding: code` (several codes with commas): a warning or an error is to be found on this line;
- `# info: code`: a remark that costs nothing is to be found on this line;
- `# finding without a line: code`: a finding that belongs to no line.

The line "Runs on `SPEC`." in the prose chooses the GPUs; two V100 otherwise. "Runs with N ranks." starts the program
once a rank, as torchrun does, "Keeps the memory's history." runs it as with `--memory-history`, "Needs Triton." leaves
it to `tests/on_triton`, and "Needs CUDA C++." to `tests/on_cuda`. In CUDA C++ a mark begins with `//` instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGES = Path(__file__).parent / "pages"
GPUS = "2xV100-SXM2-16GB"
_PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_GPUS = re.compile(r"^Runs on `([^`]+)`\.$", re.MULTILINE)
_RANKS = re.compile(r"^Runs with (\d+) ranks\.$", re.MULTILINE)
_HISTORY = re.compile(r"^Keeps the memory's history\.$", re.MULTILINE)
_TRITON = re.compile(r"^Needs Triton\.$", re.MULTILINE)
_CUDA = re.compile(r"^Needs CUDA C\+\+\.$", re.MULTILINE)
_MARK = re.compile(
    r"(?:#|//) (finding|info)(?P<nowhere> without a line)?: (?P<codes>[a-z, -]+?)(?=\s*(?:#|$))", re.MULTILINE
)

Found = tuple[str, int, bool]
"""A finding as the corpus compares it: code, line (0 for none), and whether it is an alarm or only a remark."""


@dataclass(frozen=True)
class Page:
    """One page: its file, its program (at the lines that it has in the file), what is to be found, how it is run."""

    path: Path
    program: str
    expected: frozenset[Found]
    gpus: str
    ranks: int = 1
    history: bool = False
    triton: bool = False
    cuda: bool = False

    @property
    def valid(self) -> bool:
        """Whether the program is one about which nothing may be alarmed."""
        return not any(alarm for _, _, alarm in self.expected)


def pages() -> Iterator[Page]:
    """Every page of the corpus, by name."""
    for path in sorted(PAGES.glob("*.md")):
        yield read(path)


def read(path: Path) -> Page:
    """A page; raises ValueError when it does not hold exactly one program."""
    text = path.read_text("utf-8")
    programs = list(_PROGRAM.finditer(text))
    if len(programs) != 1:
        raise ValueError(f"{path.name} holds {len(programs)} programs; a page holds one")
    program = programs[0]
    first = text[: program.start(1)].count("\n")
    gpus = _GPUS.search(text)
    expected = frozenset(_marks(program[1], first))
    ranks = _RANKS.search(text)
    return Page(
        path,
        "\n" * first + program[1],
        expected,
        gpus[1] if gpus else GPUS,
        int(ranks[1]) if ranks else 1,
        _HISTORY.search(text) is not None,
        _TRITON.search(text) is not None,
        _CUDA.search(text) is not None,
    )


def _marks(program: str, first: int) -> Iterator[Found]:
    for number, line in enumerate(program.splitlines(), first + 1):
        for mark in _MARK.finditer(line):
            for code in mark["codes"].split(","):
                yield code.strip(), 0 if mark["nowhere"] else number, mark[1] == "finding"
