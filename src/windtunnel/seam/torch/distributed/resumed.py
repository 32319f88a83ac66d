"""Files that an earlier attempt to play a cluster has written.

What the program leaves stays when an attempt ends, so the next one may resume from it instead of beginning anew.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from windtunnel import variables
from windtunnel.seam.patching import Patch

if TYPE_CHECKING:
    from windtunnel.seam.torch.state.state import State

Opened = IO[str] | IO[bytes]


def patches(state: State) -> list[Patch]:
    """`open`, by which a program reads checkpoints; nothing in a first attempt."""
    folder = os.environ.get(variables.FOLDER, "")
    try:
        with open(os.path.join(folder, variables.EARLIER), encoding="utf-8") as file:
            began, ended = float(file.read()), os.fstat(file.fileno()).st_mtime
    except (OSError, ValueError):
        return []
    stand_in = _opened(state, builtins.open, (began, ended), folder)
    return [Patch(builtins, "open", stand_in), Patch(io, "open", stand_in)]


def _opened(
    state: State, stock: Callable[..., Opened], earlier: tuple[float, float], folder: str
) -> Callable[..., Opened]:
    """`open`, which leaves a note of the first file that is read and was written meanwhile."""
    found: list[str] = []
    own = (folder, sys.prefix)  # somebody else may install packages meanwhile

    def open(file: str | os.PathLike[str] | int, mode: str = "r", *args: object, **named: object) -> Opened:
        opened = stock(file, mode, *args, **named)
        if mode.startswith("r") and not isinstance(file, int) and not found:
            path = os.fsdecode(file)
            with suppress(OSError):
                if earlier[0] <= os.fstat(opened.fileno()).st_mtime < earlier[1] and not path.startswith(own):
                    found.append(path)
                    variables.leave_note("resumed", f"{os.path.relpath(path)} at {state.groups.line}")
        return opened

    return open
