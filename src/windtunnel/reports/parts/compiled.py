"""What `torch.compile` made of a program: its graphs and kernels, and how long compiling took on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from windtunnel.trace.operation import Site
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_ns, plural


class Graph(NamedTuple):
    """One graph that was compiled and ran: where, of how many operators, and what its first call launched.

    `kernels` are all launches, `generated` those of the compiler's own kernels, which fuse `nodes` of its schedule.
    """

    site: Site
    operators: int
    kernels: int
    generated: int
    nodes: int


@dataclass(frozen=True)
class Compiled:
    """The graphs of a run, what ended or repeated them, and nanoseconds of compiling; 0 where those are not known."""

    graphs: tuple[Graph, ...]
    breaks: int
    recompiled: int
    compile_ns: int

    def total(self, name: str) -> int:
        """The sum over all graphs of a number of `Graph`."""
        return sum(int(getattr(graph, name)) for graph in self.graphs)

    @property
    def words(self) -> str:
        """The graphs in one phrase."""
        library = self.total("kernels") - self.total("generated")
        made = f"{plural(self.total('generated'), 'kernel')} generated from {plural(self.total('nodes'), 'node')}"
        words = f"{len(self.graphs)} of {plural(self.total('operators'), 'operator')}: {made}"
        if library:
            words += f", {plural(library, 'call')} of libraries"
        if self.breaks:
            words += f"; {plural(self.breaks, 'graph break')}"
        return words + (f"; {plural(self.recompiled, 'recompilation')}" if self.recompiled else "")

    @property
    def time_words(self) -> str:
        """How long compiling took; empty where that is not known."""
        return f"{format_ns(self.compile_ns)} on this machine (measured, in no other time)" if self.compile_ns else ""


SAVED = "run with TORCH_COMPILE_DISABLE=1, then `windtunnel compare` shows what compiling saves"


def measure(trace: Trace) -> Compiled | None:
    """The compiled graphs of a run; None where there is none."""
    graphs = tuple(
        Graph(note.site, *(int(dict(note.detail)[key]) for key in Graph._fields[1:]))
        for note in trace.notes
        if note.code == "compiled-graph"
    )
    if not graphs:
        return None
    breaks = {note for note in trace.notes if note.code == "graph-break"}
    recompiled = sum(note.code == "recompile" for note in trace.notes)
    return Compiled(graphs, len(breaks), recompiled, int(trace.facts.get("compile_ns", 0)))
