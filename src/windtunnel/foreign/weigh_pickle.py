"""Whether a pickle is plain data and takes memory and time in proportion: the program of a process of its own.

    python -I -S weigh_pickle.py BYTES SECONDS DEPTH < data.pickle

A few bytes can ask an unpickler for gigabytes (the number of a memo), name one list a million times, or nest so deeply
that the interpreter's stack ends. Here they meet limits of the operating system. It imports nothing of windtunnel.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterable
from typing import NoReturn

REFUSED, TOO_MUCH = 3, 4
"""Exit statuses: of a pickle that is refused, what is wrong with it on stdout, and of one that asks for too much."""
VISITS = 64
"""How many values a pickle may hold for each of its bytes, each counted as often as something refers to it."""
ROOM = 100_000
"""How many any pickle may hold."""
PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray)


class RefusedError(Exception):
    """The pickle is not read; the text says why."""


class PlainUnpickler(pickle.Unpickler):
    """Reads plain data, and refuses everything else."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        """Refuse: plain data holds no objects."""
        raise RefusedError(f"asks for {module_name}.{global_name}, and a memory snapshot holds plain data only")

    def persistent_load(self, pid: object) -> NoReturn:
        """Refuse: plain data refers to nothing outside itself."""
        raise RefusedError("refers to data outside itself")


def depth(value: object, most: int) -> int:
    """How deep containers lie in one another; counting ends above `most`."""
    level, found = [value], 0
    while level and found <= most:
        seen: dict[int, object] = {}
        for one in level:
            if isinstance(one, dict):
                children = list(one.values())
            elif isinstance(one, list | tuple | set | frozenset):
                children = list(one)
            else:
                continue
            for child in children:
                if not isinstance(child, PLAIN):
                    seen[id(child)] = child
        level = list(seen.values())
        found += 1
    return found


def visits(value: object, known: dict[int, int]) -> int:
    """How many values a walk through all of it meets, what is shared counted each time."""
    if isinstance(value, PLAIN):
        return 1
    found = known.get(id(value))
    if found is None:
        parts: Iterable[object] = value.values() if isinstance(value, dict) else value  # type: ignore[assignment]
        found = known[id(value)] = 1 + sum(visits(part, known) for part in parts)
    return found


def main() -> int:
    """Check the pickle on stdin; the exit status."""
    import resource

    memory, seconds, deepest = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    data = sys.stdin.buffer.read()
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        value = PlainUnpickler(io.BytesIO(data)).load()
        if depth(value, deepest) > deepest:
            raise RefusedError("is nested too deeply")
        if visits(value, {}) > VISITS * len(data) + ROOM:
            raise RefusedError("refers to the same data far more often than its size explains")
    except RefusedError as error:
        sys.stdout.write(str(error))
        return REFUSED
    except (
        pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError, OverflowError,
        RecursionError, ImportError,
    ) as error:  # fmt: skip
        sys.stdout.write(f"is not a pickle of plain data ({error})")
        return REFUSED
    except MemoryError:
        return TOO_MUCH
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
