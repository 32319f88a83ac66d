"""The names of the environment variables by which a run tells the processes of its program what to do, and the notes
that these leave it.

What a person sets instead (`WINDTUNNEL_GPUS` and the like) is named by the options of the commands.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

OPTIONS = "WINDTUNNEL_RUN"
"""The options of the emulation, as JSON."""
FOLDER = "WINDTUNNEL_RUN_DIR"
"""Where each process leaves its records."""
PYTHON = "WINDTUNNEL_PYTHON"
"""The Python that windtunnel runs on."""
USED = "WINDTUNNEL_USED_DIR"
"""Where a process that has used a device leaves a file with its number: pytest counts the tests that start some."""
TRIAL = "WINDTUNNEL_TRIAL"
"""A change of the program that one rehearsal tries, by its name in `seam/torch/trials.py`."""
MEASURE = "WINDTUNNEL_MEASURE"
"""Set where real GPUs are measured and none is emulated."""
FORKSERVER = "WINDTUNNEL_FORKSERVER"
"""Where a program's Python waits for requests to fork, instead of running the program (`forkserver.py`)."""
FOLD = "WINDTUNNEL_FOLD"
"""How the ranks of a cluster are played, as JSON (`ranks/fold.py`), in the processes that play one."""
EARLIER = "earlier"
"""The file of the run's folder that says when the first attempt to play a cluster began; as old as the latest one."""
REFUSED = 66
"""The exit code of a program that met something which the emulation must refuse."""


def note_outcome(code: int, text: str) -> None:
    """Tell `windtunnel run` with which code it should end, should the program fail."""
    leave_note("outcome", f"{code}\n{text}")


def leave_note(kind: str, text: str) -> None:
    """Leave a note of this process in the run's folder."""
    folder = os.environ.get(FOLDER)
    if folder and os.path.isdir(folder):
        with open(os.path.join(folder, f"{os.getpid()}.{kind}"), "w", encoding="utf-8", errors="replace") as file:
            file.write(text)


@contextmanager
def changed(values: Mapping[str, str | None]) -> Iterator[None]:
    """Environment variables with these values (None: not set), and with those from before at the end."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
