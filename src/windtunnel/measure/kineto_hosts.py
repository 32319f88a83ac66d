"""The host's side of a Kineto trace: what each thread was inside of when it called CUDA.

Events of one thread nest: Python functions hold operators, operators hold calls of the CUDA runtime. A sweep over each
thread's events, in order of time, finds for every call the operators and the Python function around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from windtunnel.trace.operation import UNKNOWN_SITE, Site
from windtunnel.trace.plain import Json

Event = Json

ROUNDING_US = 0.0005  # what is left of a nanosecond when a start and a length are added up
RUNTIME = ("cuda_runtime", "cuda_driver", "Runtime")
OPERATORS = ("cpu_op", "Operator")
ANNOTATIONS = ("user_annotation",)
FUNCTIONS = ("python_function",)
_FUNCTION = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<name>.+)$")
_LINE = re.compile(r"^(?P<file>.+):(?P<line>\d+)$")
_LIBRARY = re.compile(r"(^|/)(torch|site-packages|dist-packages|lib/python3[.\d]*|importlib|<frozen)(/|\b)|^<built-in")
"""Paths of frames that nobody would change: the profiler shortens them to what follows an entry of `sys.path`."""


class Call(NamedTuple):
    """One call of the CUDA runtime, or an annotation; `operators` around it, from the outermost inwards."""

    event: Event
    thread: int
    operators: tuple[Event, ...]
    site: Site


class Hosts:
    """The calls of all threads, and the annotations that end steps."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.calls: list[Call] = []
        self.annotations: list[Call] = []
        self._sites: dict[str, Site] = {}
        lines: dict[tuple[object, object], list[Event]] = {}
        wanted = {*RUNTIME, *OPERATORS, *ANNOTATIONS, *FUNCTIONS}
        for event in events:
            if event.get("ph") == "X" and event.get("cat") in wanted:
                lines.setdefault((event.get("pid"), event.get("tid")), []).append(event)
        # The main thread's number is the process's; the others follow in the order of their first event.
        order = sorted(lines, key=lambda key: (key[0] != key[1], min(float(event["ts"]) for event in lines[key])))
        for thread, key in enumerate(order):
            self._sweep(thread, lines[key])

    def _sweep(self, thread: int, events: list[Event]) -> None:
        events.sort(key=lambda event: (float(event["ts"]), -float(event.get("dur", 0)), event.get("cat") in RUNTIME))
        open_events: list[Event] = []
        for event in events:
            start = float(event["ts"])
            while open_events and _end(open_events[-1]) <= start + ROUNDING_US:
                open_events.pop()
            category = event["cat"]
            if category in RUNTIME:
                operators = tuple(one for one in open_events if one["cat"] in OPERATORS)
                self.calls.append(Call(event, thread, operators, self._site([*open_events, event])))
                continue
            if category in ANNOTATIONS:
                self.annotations.append(Call(event, thread, (), self._site([*open_events, event])))
            open_events.append(event)

    def _site(self, stack: Sequence[Event]) -> Site:
        """The innermost line of the program: from a Python function, or from an operator that carries a stack."""
        for event in reversed(stack):
            if event["cat"] in FUNCTIONS:
                site = self._function(str(event.get("name", "")))
            else:
                site = self._stack(str((event.get("args") or {}).get("Call stack", "")))
            if site.file:
                return site
        return UNKNOWN_SITE

    def _function(self, name: str) -> Site:
        site = self._sites.get(name)
        if site is None:
            found = _FUNCTION.match(name)
            known = found is not None and not _LIBRARY.search(found["file"])
            site = Site(found["file"], int(found["line"]), found["name"]) if found and known else UNKNOWN_SITE
            self._sites[name] = site
        return site

    def _stack(self, text: str) -> Site:
        for frame in text.split(";"):
            line = _LINE.match(frame.strip())
            site = Site(line["file"], int(line["line"])) if line else self._function(frame.strip())
            if site.file:
                return site
        return UNKNOWN_SITE


def _end(event: Event) -> float:
    return float(event["ts"]) + float(event.get("dur", 0))
