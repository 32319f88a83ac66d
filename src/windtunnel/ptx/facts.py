"""What is known of a PTX instruction apart from how it is emitted."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """What an instruction occupies; `counters` counts by it."""

    INTEGER = "integer"
    FLOAT = "float"
    CONVERT = "convert"
    SPECIAL = "special"
    MOVE = "move"
    MEMORY = "memory"
    ATOMIC = "atomic"
    WARP = "warp"
    BARRIER = "barrier"
    FENCE = "fence"
    CONTROL = "control"
    TENSOR = "tensor"
    CALL = "call"


@dataclass(frozen=True)
class Facts:
    name: str
    kind: Kind
    source: str
    """The section of the PTX ISA that defines it."""
    modifiers: frozenset[str] | None
    """The modifiers and types that are emulated; None: `emit` refuses what it does not know."""
    writes: bool = True
    """Its first operand is its result."""
    lanewise: bool = False
    """Lanes do not see each other: equal operands give equal results."""
