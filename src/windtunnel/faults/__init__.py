"""Injected faults, one a file: `--fault`, `emulate(faults=...)`, `@pytest.mark.fault`.

A fault is addressed by rank, step, operator or modelled time, and happens as often as `times` says. Listing this folder
is the registry: a module holds one subclass of `Fault`, whose docstring is its documentation and whose `options` are
its own parameters. What a fault does to the program it does through `Hands`, so none of them knows a framework.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
import random
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, ClassVar, NamedTuple, Protocol

from windtunnel.errors import UsageError

ADDRESS: dict[str, type] = {
    "rank": int, "step": int, "restart": int, "operation": str, "after_ms": float, "times": int,
}  # fmt: skip
"""Where and when a fault happens, and how often; 1 time by default, 0 for every time."""


class Hands(Protocol):
    """What a fault can do to the program and its devices."""

    def refuse_memory(self, until_freed: bool) -> None:
        """Let the next request for device memory fail, or all until some is given back."""

    def raise_error(self, text: str) -> None:
        """Raise a RuntimeError at the program's line."""

    def leave(self, code: int) -> None:
        """End the process with an exit code, past Python's end."""

    def kill(self, signal: int) -> None:
        """End the process by a signal."""

    def hang(self) -> None:
        """Let this thread wait for ever."""

    def slow_down(self, factor: float) -> None:
        """Let kernels take `factor` times as long from now on."""

    def lose_device(self, xid: int, text: str, name: str) -> None:
        """Let CUDA fail with an error from the next wait on, until the process ends, and NVML show an Xid."""

    def set_element(self, value: float, draw: random.Random) -> None:
        """Write a value into an element of the operator's result."""

    def flip_bit(self, bit: int, draw: random.Random) -> None:
        """Flip a bit of an element of the operator's result; -1 for any."""

    def delay(self, duration_ns: int) -> None:
        """Let the host wait."""

    def kill_worker(self) -> None:
        """Kill the worker process that would deliver the next batch."""

    def fill_disk(self) -> None:
        """Let the file that is being saved end in the middle, as on a full disk."""


class Moment(NamedTuple):
    """What the program is about to do, or has just done.

    `kind` is "operator", "transfer" (the data of a collective or message are on their way), "batch" or "save"; `name`
    the operator's. `step` counts from 1 and grows with each step of an
    optimizer; `restart` counts from 0 how often torchrun has started the ranks again.
    """

    kind: str
    name: str
    rank: int
    step: int
    now_ns: int
    restart: int = 0


class Fault:
    """Base of every fault: when it happens, and what it does."""

    name: ClassVar[str] = ""
    kind: str = "operator"  # the moments at which it may happen
    after: ClassVar[bool] = False  # whether it happens once the operator has written, or the batch has come
    options: ClassVar[Mapping[str, Any]] = {}  # its own parameters with their defaults

    def __init__(self, text: str, given: Mapping[str, Any], draw: random.Random) -> None:
        self.text = text
        self.given = given
        self.draw = draw
        self.left = given.get("times", 1) or -1
        self.value = {**self.options, **given}

    def due(self, moment: Moment) -> bool:
        """Whether it happens at this moment."""
        given = self.given
        return (
            self.left != 0
            and moment.kind == self.kind
            and given.get("rank", moment.rank) == moment.rank
            and self.in_step(given.get("step", moment.step), moment.step)
            and given.get("restart", moment.restart) == moment.restart
            and moment.now_ns >= given.get("after_ms", 0) * 1_000_000
            and ("operation" not in given or matches(given["operation"], moment.name))
        )

    def in_step(self, asked: int, step: int) -> bool:
        """Whether a moment of `step` is one of the step that was asked for."""
        return asked == step

    def strike(self, hands: Hands) -> None:
        """Do what it does."""
        raise NotImplementedError


def matches(pattern: str, name: str) -> bool:
    """Whether an operator ("aten::mm.out", "c10d::allreduce_") is the one that is meant ("mm", "all_reduce")."""
    short = name.partition("::")[2].partition(".")[0]
    plain = short.replace("_", "")
    return any(fnmatchcase(one, pattern) for one in (name, short)) or fnmatchcase(plain, pattern.replace("_", ""))


@functools.cache
def all_faults() -> dict[str, type[Fault]]:
    """Every fault of this folder, by name."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        namespace = vars(importlib.import_module(f"{__name__}.{module.name}"))
        for value in namespace.values():
            if isinstance(value, type) and issubclass(value, Fault) and value.__module__ == namespace["__name__"]:
                found[value.name] = value
    return dict(sorted(found.items()))


def parse(texts: Iterable[str], seed: int | None = None) -> list[Fault]:
    """Faults by their descriptions, "die:rank=1,step=3"; what they draw is drawn by `seed` and their place in the list.

    Raises:
        UsageError: there is no such fault, or it has no such parameter, or the parameter no such value.
    """
    return [_parse(text, random.Random(f"{seed or 0} {number}")) for number, text in enumerate(texts)]


def described(value: Mapping[str, object]) -> str:
    """The description of a fault that is given as a table: {"name": "die", "rank": 1}."""
    rest = ",".join(f"{name}={part}" for name, part in value.items() if name != "name")
    return f"{value.get('name', '')}:{rest}" if rest else str(value.get("name", ""))


def _parse(text: str, draw: random.Random) -> Fault:
    name, _, rest = text.partition(":")
    known = all_faults()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        raise UsageError(f"there is no fault {name!r}; {_hint(near, known)}")
    kind = known[name]
    types = {**ADDRESS, **{option: type(value) for option, value in kind.options.items()}}
    given: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        option, equals, value = part.partition("=")
        option = option.strip().replace("-", "_")
        if option not in types or not equals:
            near = difflib.get_close_matches(option, types, 1)
            raise UsageError(f"the fault {name!r} has no parameter {option!r}; {_hint(near, types)}")
        try:
            given[option] = types[option](value.strip())
        except ValueError:
            wanted = "a whole number" if types[option] is int else "a number"
            raise UsageError(f"{option} of the fault {name!r} cannot be {value!r}: it is {wanted}") from None
    if given.get("step", 1) < 1 or given.get("times", 0) < 0 or min(given.get("rank", 0), given.get("restart", 0)) < 0:
        raise UsageError(f"the fault {text!r} never happens: steps count from 1, and ranks, restarts and times from 0")
    return kind(text, given, draw)


def _hint(near: list[str], known: Iterable[str]) -> str:
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
