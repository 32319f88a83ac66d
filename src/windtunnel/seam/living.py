"""The objects of some types that live."""

from __future__ import annotations

import gc
from typing import TypeVar

T = TypeVar("T")


def living(kind: type[T]) -> list[T]:
    """All objects of a type, or of types derived from it, that the garbage collector knows."""
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]
