"""What each command prints with `--json`, as types of which its JSON Schema is made (`windtunnel explain --schema`)."""

from __future__ import annotations

import operator
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import GenericAlias
from typing import Literal, TypedDict, get_type_hints

from windtunnel.errors import UsageError
from windtunnel.reports.schema import Report, schema_of_type
from windtunnel.trace.plain import Json


class Page(TypedDict):
    """What a finding's code means."""

    code: str
    severity: Literal["error", "warning", "info"]
    page: str


class Listed(TypedDict):
    """An experiment that there is."""

    name: str
    title: str


MAPPING: Callable[..., object] = vars(typing)["TypedDict"]
"""Makes a type of keys and their types, which a type checker cannot follow."""


def printed(kind: type, name: str, **more: object) -> object:
    """A dataclass or named tuple as the object that it is printed as, with further keys."""
    names = [one.name for one in fields(kind)] if is_dataclass(kind) else list(kind.__annotations__)
    hints = get_type_hints(kind)
    return MAPPING(name, {name: hints[name] for name in names} | more)


def many(kind: object) -> object:
    """A list of a type that is made here."""
    return GenericAlias(list, (kind,))


def _compare() -> object:
    from windtunnel.analysis.compare import Comparison

    return printed(Comparison, "Comparison", same=bool)


def _verify() -> object:
    from windtunnel.analysis.verify import Row

    return MAPPING("Verification", {"same": bool, "tolerance": float, "rows": many(Row)})


def _memory() -> object:
    from windtunnel.analysis.replay import ReplayResult
    from windtunnel.analysis.what_if import WhatIf

    said: dict[str, object] = {"agrees": bool, "explained": bool, "verdict": str}
    again = printed(ReplayResult, "Recorded", **said, with_recorded_addresses=None)
    result = printed(ReplayResult, "Replay", **said, with_recorded_addresses=operator.or_(again, None))
    return MAPPING("Replays", {"path": str, "agrees": bool, "devices": many(result), "what_if": WhatIf | None})


def _plan() -> object:
    from windtunnel.planning.rows import Row

    form: dict[str, object] = {
        "schema_version": Literal[1],
        "emulated": Literal[True],
        **dict.fromkeys(("verdict", "why", "next", "program", "goal"), str),
        **dict.fromkeys(("steps", "samples", "best"), int | None),
        "rivals": list[int],
        "rows": list[Row],
        "notes": list[str],
        "suggestions": list[str],
        "rehearsals": int,
        "cached": int,
        "seconds": float,
        "processor_seconds": float | None,
        "interrupted": bool,
    }
    return MAPPING("Plan", form)


def _experiment() -> object:
    from windtunnel.experiments._result import Fact, Result

    facts = GenericAlias(dict, (str, printed(Fact, "Fact")))
    return printed(Result, "Result", schema_version=Literal[1], emulated=bool, facts=facts, plots=list[Json])


def _doctor() -> object:
    from windtunnel.doctor import Line

    return many(printed(Line, "Line"))


def _gpus() -> object:
    from windtunnel.gpus.gpu import Gpu

    return list[Gpu]


def _kernel() -> object:
    from windtunnel.single_kernel import Outcome

    return printed(Outcome, "Outcome", faults=list[Json], counters=Json, arrays=list[Json])


OUTPUTS: dict[str, tuple[str, Callable[[], object]]] = {
    "run": ("the report of a run", lambda: Report),
    "report": ("the report of a saved trace", lambda: Report),
    "retime": ("the report of a run on another GPU", lambda: Report),
    "plan": ("a plan", _plan),
    "compare": ("what differs between two runs", _compare),
    "verify": ("what differs between a GPU and its emulation", _verify),
    "memory": ("replays of a memory snapshot", _memory),
    "kernel": ("one launch of a kernel", _kernel),
    "gpus": ("GPUs that can be emulated", _gpus),
    "doctor": ("what a machine has and lacks", _doctor),
    "explain": ("pages of findings", lambda: list[Page]),
    "experiment": ("an experiment's result", _experiment),
    "experiment list": ("the experiments that there are", lambda: list[Listed]),
}
"""By command: what it prints, and the type of that."""


def schema_of(command: str) -> Json:
    """The JSON Schema of what a command prints with `--json`.

    Raises:
        UsageError: there is no such command, or it prints no JSON.
    """
    if command not in OUTPUTS:
        raise UsageError(f"there is no schema of {command!r}; those that print JSON are {', '.join(OUTPUTS)}")
    title, kind = OUTPUTS[command]
    return schema_of_type(kind(), f"windtunnel {command} --json: {title}")
