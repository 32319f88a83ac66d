"""Chunks of operators in forked processes: one that dies names the call in which it died, and the rest goes on."""

from __future__ import annotations

import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

Work = Callable[[Callable[[str], None], list[str]], dict[str, Any]]
"""Compares: it announces each call before it makes it, leaves out those that it is given, and gives what it found."""


@dataclass
class Tally:
    """What the workers found: comparisons made, differences as plain data, and calls in which a process died."""

    comparisons: int = 0
    found: list[dict[str, Any]] = field(default_factory=list)
    deaths: list[tuple[str, str]] = field(default_factory=list)


def run(work: Work, seconds: float) -> Tally:
    """Do some work in a process of its own; calls that end it or take `seconds` are left out of the next one."""
    tally = Tally()
    skip: list[str] = []
    while True:
        lines, how = attempt(work, skip, seconds)
        last = lines[-1] if lines else ""
        if last.startswith("{"):
            result = json.loads(last)
            tally.comparisons = result["comparisons"]
            tally.found += result["found"]
            return tally
        if "|" not in last or last in skip:
            raise RuntimeError(f"a worker {how} outside of a call, after {last!r}")
        tally.deaths.append((last, how))
        skip.append(last)


def attempt(work: Work, skip: list[str], seconds: float) -> tuple[list[str], str]:
    """(the lines that a process wrote, how it ended)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        in_child(work, skip, writing)
    os.close(writing)
    how = "hung"
    text = b""
    heard = time.monotonic()
    while time.monotonic() - heard < seconds:
        if not select.select([reading], [], [], 1.0)[0]:
            continue
        part = os.read(reading, 1 << 20)
        if not part:
            how = "ended"
            break
        text += part
        heard = time.monotonic()
    if how == "hung":
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if how == "ended":
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    return [line for line in text.decode().split("\n") if line], how


def in_child(work: Work, skip: list[str], writing: int) -> NoReturn:
    """Work, write what was found as the last line, and leave without the parent's exit handlers."""
    code = 1
    try:
        result = work(lambda call: write(writing, call), skip)
        write(writing, json.dumps(result))
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


def write(file: int, line: str) -> None:
    """Write one line whole."""
    data = (line + "\n").encode()
    while data:
        data = data[os.write(file, data) :]
