"""What kernels did in the last run with data whose work depends on values, for runs without data.

A file for each module of kernels, beside the compiled extensions, has the counts of each launch by the kernel, its
grid and its arguments: numbers as they are, pointers by their place in memory of a size."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TypedDict

from windtunnel import ptx
from windtunnel.compiler.extensions import cache_folder
from windtunnel.seam.cuda_runtime.modules import KernelFunction


class KeptLaunch(TypedDict):
    """What a file says of a launch; `accesses` has the fields of `TouchedRange`, but for its pages."""

    counters: dict[str, object]
    accesses: list[tuple[int, int, int, bool, bool]]


MOST = 256
"""Launches that a file holds: the latest."""


def relative(launch: ptx.Launch, starts: Mapping[int, int]) -> ptx.Launch:
    """A launch without faults, whose memory is named by the words of its arguments (`starts`: where each points)."""
    words = {start: word for word, start in starts.items()}
    kept = (one for one in launch.accesses if one.start in words)
    return replace(launch, faults=(), accesses=tuple(
        replace(one.moved(words[one.start], -one.start), pages=()) for one in kept
    ))  # fmt: skip


def absolute(launch: ptx.Launch, starts: Mapping[int, int]) -> ptx.Launch:
    """The same launch with the memory that its arguments point to now."""
    return replace(launch, accesses=tuple(
        one.moved(starts[one.start], starts[one.start]) for one in launch.accesses
    ))  # fmt: skip


class LastCounts:
    """The files, each read when it is first asked for."""

    def __init__(self) -> None:
        self._files: dict[Path, dict[str, KeptLaunch]] = {}

    def keep(self, function: KernelFunction, key: Sequence[object], launch: ptx.Launch) -> None:
        """A launch with data did this; `launch` is a relative one."""
        path = self._path(function)
        if path is None:
            return
        known = self._known(path)
        known.pop(_named(function, key), None)
        known[_named(function, key)] = {
            "counters": asdict(launch.counters),
            "accesses": [(one.start, one.low, one.high, one.read, one.written) for one in launch.accesses],
        }
        for name in list(known)[:-MOST]:
            del known[name]
        with suppress(OSError):  # the next run without data assumes, as it would have
            written = path.with_suffix(f".{os.getpid()}")
            written.write_text(json.dumps(known), "utf-8")
            written.replace(path)

    def of(self, function: KernelFunction, key: Sequence[object]) -> ptx.Launch | None:
        """What such a launch did in the last run with data, as a relative one."""
        path = self._path(function)
        row = None if path is None else self._known(path).get(_named(function, key))
        if row is None:
            return None
        accesses = tuple(
            ptx.TouchedRange(start, low, high, read, written) for start, low, high, read, written in row["accesses"]
        )
        return ptx.Launch(ptx.Counters(**row["counters"]), (), None, accesses)  # type: ignore[arg-type]

    def _path(self, function: KernelFunction) -> Path | None:
        with suppress(OSError):  # a user without a home folder
            return cache_folder("counts") / f"{function.binary.module.digest}.json"
        return None

    def _known(self, path: Path) -> dict[str, KeptLaunch]:
        found = self._files.get(path)
        if found is None:
            found = self._files[path] = _read(path)
        return found


def _named(function: KernelFunction, key: Sequence[object]) -> str:
    return f"{function.name} {hashlib.sha256(repr(key).encode()).hexdigest()[:24]}"


def _read(path: Path) -> dict[str, KeptLaunch]:
    """What a file says; nothing where it was written by another version."""
    names = {one.name for one in fields(ptx.Counters)}
    try:
        found = json.loads(path.read_text("utf-8"))
        return {name: row for name, row in found.items() if set(row["counters"]) == names}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
