"""How much memory this machine can still give: emulated tensors keep their values there."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

import psutil

from windtunnel.errors import UsageError

UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20}
UNITS |= {"gi": 1 << 30, "ti": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)

RESERVE_SHARE = 0.05
RESERVE_BYTES = 512 << 20
"""Memory left to everything else on the machine: this share of it, or this many bytes if that is more."""
NEAR_SHARE = 0.25
"""With less than this share of the machine's memory left, every operator is asked for its size before it runs."""
LARGE = 64 << 20
"""A result from this size on is compared with what is free before it is made; smaller ones afterwards, together."""
STRIDE = 256 << 20
"""How many bytes of tensors are made between two looks at the machine while there is plenty."""


def parse_size(value: str | int) -> int:
    """A size in bytes: 4294967296, "4GiB", "4G" (10^9), "512MiB".

    Raises:
        UsageError: it is none, or not positive.
    """
    match = _SIZE.fullmatch(str(value))
    size = 0 if match is None else int(float(match[1]) * UNITS[(match[2] or "").lower()])
    if size <= 0 or isinstance(value, bool):
        raise UsageError(
            f"{value!r} is not a size of memory: give bytes, or a number with a unit such as 8GiB or 500MB"
        )
    return size


def available_bytes(root: Path = Path("/")) -> int:
    """What this process can still get without swapping: the least of the machine's and its control groups' memory."""
    free = int(psutil.virtual_memory().available)
    return min([free, *(limit - used for limit, used in _groups(root))])


def total_bytes(root: Path = Path("/")) -> int:
    """The machine's memory, or the control group's limit where that is less."""
    return min([int(psutil.virtual_memory().total), *(limit for limit, _ in _groups(root))])


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use but for the page cache) of every memory control group that this process is in.

    Version 2 has `memory.max`, version 1 `memory.limit_in_bytes` (Linux, Documentation/admin-guide/cgroup-v2.rst and
    cgroup-v1/memory.rst). In a container the path may be the host's; the mount's root is the container's group then.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, names = (
                f"{root}/sys/fs/cgroup",
                ("memory.max", "memory.current", ("inactive_file", "active_file")),
            )
        elif "memory" in controllers.split(","):
            mount, names = (
                f"{root}/sys/fs/cgroup/memory",
                ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
            )
        else:
            continue
        folder = f"{mount}/{path.strip('/')}".rstrip("/")
        while True:
            found = _group(folder, *names)
            if found is not None:
                yield found
            if folder == mount:
                break
            folder = os.path.dirname(folder)


def _group(folder: str, limit: str, usage: str, cache: tuple[str, str]) -> tuple[int, int] | None:
    try:
        most = int(_text(f"{folder}/{limit}"))  # "max" is no number: there is no limit
        used = int(_text(f"{folder}/{usage}"))
        words = (line.split() for line in _text(f"{folder}/memory.stat").splitlines())
        cached = sum(int(word[1]) for word in words if word[0] in cache)
    except (OSError, ValueError):
        return None
    return most, max(0, used - cached)


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


class Room:
    """Keeps count of what may still be made.

    `left` is how many bytes may be placed until the next look at the machine, so that one subtraction a tensor is
    enough. `near` says that little is left; then operators are asked before they run. `untouched` are large tensors of
    `torch.empty`: their pages take no memory until something is written there.

    Args:
        in_use: the bytes that the emulated tensors of this process have now; `limit` is compared with it.
        limit: what they may have at most; None for what the machine can give.
        available, total: of the machine, in bytes.
    """

    def __init__(
        self,
        in_use: Callable[[], int],
        limit: int | None = None,
        available: Callable[[], int] = available_bytes,
        total: Callable[[], int] = total_bytes,
    ) -> None:
        self.in_use = in_use
        self.limit = limit
        self.available = available
        memory = total()
        self.reserve = max(int(RESERVE_SHARE * memory), RESERVE_BYTES)
        self.near_bytes = int(NEAR_SHARE * memory)
        self.near = False
        self.left: float = 0
        self.untouched: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self.look()

    def look(self) -> float:
        """Ask the machine: how many bytes may be made before it runs short; negative when it has."""
        free = self.free()
        self.near = free - sum(self.untouched.values()) < self.near_bytes
        self.left = max(0, min(LARGE, free)) if self.near else STRIDE
        return free

    def free(self) -> float:
        """The bytes that emulated tensors may still take, by the machine and by the limit."""
        free = self.available() - self.reserve
        return free if self.limit is None else min(free, self.limit - self.in_use())

    def by_limit(self) -> bool:
        """Whether it is the limit rather than the machine that allows so little."""
        return self.limit is not None and self.limit - self.in_use() <= self.available() - self.reserve


class Boundless(Room):
    """The room of an emulation whose tensors have no values."""

    def __init__(self) -> None:
        super().__init__(lambda: 0, None, lambda: 1 << 62, lambda: 0)
        self.left = math.inf
