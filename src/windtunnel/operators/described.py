"""Operators that a program or a stand-in describes itself: what their kernels compute and what they take.

They are those of libraries whose binaries this machine lacks, or whose kernels only a GPU runs (`windtunnel.kernel`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Amount = int | Callable[..., int]
"""A number, or a function of the operator's arguments that gives it."""


@dataclass(frozen=True, slots=True)
class Description:
    """What is said of one operator.

    `values` computes its results from its arguments by PyTorch's functions. `like` names an operator of PyTorch's of
    the same kind, whose efficiency the price takes; "" where nothing like it was measured. `flops` and `bytes` are what
    a call computes and moves; None leaves them to `like` and to the sizes of its tensors. `host`: some of its tensors
    may lie on the host. `parts`: it is no kernel; what its function calls counts.
    """

    name: str
    values: Callable[..., object]
    like: str = ""
    flops: Amount | None = None
    bytes: Amount | None = None
    host: bool = False
    parts: bool = False


known: dict[str, Description] = {}
"""By name without overload."""


binaries: list[Callable[[str], bool]] = []
"""Functions that describe the operators of a namespace, and say whether they do: those of libraries whose binary this
machine does not load. They are asked once a program calls such an operator."""


def changed() -> None:
    """Something was described; the emulation puts a function in this one's place that forgets its plans."""


def add(description: Description) -> None:
    """Describe an operator from its next call on."""
    known[description.name] = description
    changed()


def of(name: str) -> Description | None:
    """What is said of an operator, by its name with or without overload."""
    return known.get(name.partition(".")[0]) if known else None


def of_binary(name: str) -> Description | None:
    """The same of an operator that has no kernel here."""
    namespace = name.partition("::")[0]
    return of(name) if any(describe(namespace) for describe in binaries) else None


def amount(given: Amount, args: tuple[object, ...], kwargs: dict[str, object]) -> int:
    """That number for one call."""
    return int(given(*args, **kwargs) if callable(given) else given)
