"""The objects of some types that live, found without a moment in which another thread of the program could notice.

`gc.get_objects` also lists the tuple that another thread is making of a generator just then, and while anybody else
holds that tuple its thread gets a SystemError ("bad argument to internal function", python/cpython issue 15108). So
list and search are one call of C code, during which no other thread runs.
"""

from __future__ import annotations

import gc
from itertools import chain, compress, repeat, tee
from typing import TypeVar

T = TypeVar("T")


def living(kind: type[T]) -> list[T]:
    """All objects of a type, or of types derived from it, that the garbage collector knows."""
    objects, others = tee(chain.from_iterable(map(gc.get_objects, (None,))))
    return list(compress(objects, map(issubclass, map(type, others), repeat(kind))))
