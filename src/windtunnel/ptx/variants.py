"""A kernel's machine code: plain, or instrumented with checks and counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel.ptx import access, lines, table
from windtunnel.ptx import layout as at
from windtunnel.ptx.calls import Flat, flatten
from windtunnel.ptx.dependence import Accessed, accessed
from windtunnel.ptx.emitter import Emitter, Site
from windtunnel.ptx.engine import Code
from windtunnel.ptx.flow import Graph, build
from windtunnel.ptx.function import FunctionText
from windtunnel.ptx.layout import Layout, lay_out
from windtunnel.ptx.line import Shape
from windtunnel.ptx.meeting import INDEPENDENT, meet_in_branches
from windtunnel.ptx.syntax import Function as Parsed
from windtunnel.ptx.syntax import Source

LEVEL = 1
LIKELY = '!1 = !{!"branch_weights", i32 1000, i32 1}'


@dataclass
class Prepared:
    """A kernel between its text and its code."""

    name: str
    flat: Flat
    graph: Graph
    layout: Layout
    parameters: Mapping[str, int]
    sites: dict[Site, int]
    accessed: Accessed


def prepare(source: Source, function: Parsed) -> Prepared:
    flat = flatten(source, function)
    graph = build(flat, table.ROWS)
    if source.target >= INDEPENDENT and meet_in_branches(graph.blocks, graph.following):
        graph = build(flat, table.ROWS, apart=True)
    layout = lay_out(source, flat)
    parameters = {p.name: p.offset for p in function.parameters}
    return Prepared(function.name, flat, graph, layout, parameters, {}, accessed(graph, parameters, layout.variables))


def for_shape(kernel: Prepared, shape: Shape) -> Prepared:
    """The kernel for blocks whose threads lie in that way."""
    found = lines.find(kernel.graph, shape)
    graph = build(kernel.flat, table.ROWS, kernel.graph.apart, set(found.checked))
    graph.lines = found
    return replace(kernel, graph=graph, sites={})


def compile_variant(kernel: Prepared, instrumented: bool, folder: Path) -> Code:
    text, needs = intermediate(kernel, instrumented)
    return Code(text, needs, folder, LEVEL)


def intermediate(kernel: Prepared, instrumented: bool) -> tuple[str, list[str]]:
    """The module in LLVM IR, and the runtime's functions that it calls."""
    bodies: list[str] = []
    declared: dict[str, str] = {}
    helpers: set[str] = set()
    for mode in (at.WHOLE, at.PARTIAL):
        emitter = Emitter(kernel.graph, kernel.layout, kernel.parameters, table.emit, mode, instrumented, kernel.sites)
        bodies.append(FunctionText(emitter).text())
        declared |= emitter.declared
        helpers |= emitter.helpers
    accesses = sorted(helpers - {"wt_permit"})
    for size in sorted({access.size_of(name) for name in accesses}):
        text, more = access.shape(size)
        bodies.append(text)
        declared |= more
        if instrumented:
            bodies.append(access.permit(size))
    in_turns = any(map(kernel.graph.ends_with_barrier, range(len(kernel.graph.blocks))))
    for name in accesses:
        text, more = access.function(name, access.PAGE_AHEAD if in_turns else access.AHEAD)
        bodies.append(text)
        declared |= more
    if helpers:
        declared |= access.DECLARATIONS
    text = "\n".join([*declared.values(), *bodies, "!0 = !{}", LIKELY])
    needs = re.findall(r"^declare \S+ @(wt_\w+)\(", "\n".join(declared.values()), re.M)
    return text, needs
