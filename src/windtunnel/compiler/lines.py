"""Lines of PTX that were inlined from headers count as the line of the program's own that they were inlined into.

clang names the callers in the comment after `.loc`: `header.h:144:1 @[ kernel.cu:7:46 ]`.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path

FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.MULTILINE)
LOCATION = re.compile(r"^(\s*\.loc\s+)(\d+)( \d+ \d+)(\s*// (.*))$", re.MULTILINE)
CALLER = re.compile(r"@\[ (.*?):(\d+):(\d+)")
SYSTEM = ("/usr/",)


def _whole(path: str) -> str:
    """A caller's path, of which clang leaves out what it shares with the folder that it runs in."""
    below = Path.cwd()
    found = next((folder / path for folder in (below, *below.parents) if (folder / path).exists()), below / path)
    return os.path.abspath(found)


def of_the_program(text: str, hidden: Sequence[str]) -> str:
    """PTX whose lines are none of the folders `hidden`, where they have a caller elsewhere."""
    files = {int(number): os.path.abspath(path) for number, path in FILE.findall(text)}
    numbers = {path: number for number, path in files.items()}
    folders = (*(os.path.abspath(folder) + os.sep for folder in hidden), *SYSTEM)
    added: list[str] = []
    whole = functools.cache(_whole)  # a line has its callers again for each instruction

    def replaced(found: re.Match[str]) -> str:
        if not files.get(int(found[2]), "").startswith(folders):
            return found[0]
        for path, line, column in CALLER.findall(found[5]):
            full = whole(path)
            if not full.startswith(folders):
                if full not in numbers:
                    numbers[full] = max(numbers.values(), default=0) + 1
                    added.append(f'\t.file\t{numbers[full]} "{full}"\n')
                return f"{found[1]}{numbers[full]} {line} {column}{found[4]}"
        return found[0]

    return LOCATION.sub(replaced, text) + "".join(added)
