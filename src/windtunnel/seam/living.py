"""The objects of some types that live, and other looks at Python's own objects that no thread may notice.

While a list of all objects lives, no other thread may run: what that thread lets go of would stay, and a tuple that it
fills would fail (`tuple(generator)` raises a SystemError where something else holds the tuple).
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from itertools import chain, compress, repeat
from operator import call
from typing import TypeVar, cast

T = TypeVar("T")


def living(kind: type[T]) -> list[T]:
    """All objects of a type, or of types derived from it, that the garbage collector knows."""
    known: list[object] = []
    ask = partial(known.extend, chain.from_iterable(map(gc.get_objects, (None,))))
    choose = partial[list[T]](list, compress(known, map(issubclass, map(type, known), repeat(kind))))
    return cast(list[T], at_once(ask, choose, known.clear)[1])


def at_once(*looks: Callable[[], object]) -> list[object]:
    """What functions of C give, one after another in one call into C, in which no other thread runs.

    Nor does the collector: a finalizer would let one run.
    """
    turns = {True: (gc.disable, *looks, gc.enable), False: looks}
    done = list(map(call, chain.from_iterable(map(turns.__getitem__, map(call, (gc.isenabled,))))))
    return done[1:-1] if len(done) > len(looks) else done
