"""Which decisions of a program hang on a value that each rank has of its own, and which collectives come behind them.

A rank that decides otherwise than the others calls other collectives, and they wait for it for ever. Without data all
ranks take such a value for the same, so the run cannot show it; the program's source does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from windtunnel.trace.operation import Kind, Note
from windtunnel.trace.trace import KIND, SIGNATURE, SITE, Trace

CODE = "diverging-branch"
MEETINGS = (Kind.COLLECTIVE, Kind.BATCH, Kind.POST)
SHARING = re.compile(r"all_?reduce|gather|broadcast|sync")
"""What functions are called after which all ranks have the same value."""
USE = "parameter-use"
"""Notes of lines that use parameters, whose gradients ranks reduce."""
WAITING = re.compile(r"^(all_reduce|all_gather\w*|reduce_scatter\w*|broadcast\w*|barrier|backward)$")
"""Functions for which the ranks of a group wait, where no run shows it since the branch was not taken."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
Scope = ast.Module | Function
Part = ast.AST


class Decision(NamedTuple):
    """A line that decides, and a line behind it at which ranks wait for one another in a call.

    There is no `call` where parameters are used: ranks wait when they reduce their gradients.
    """

    line: int
    call_line: int
    call: str


def decided(trace: Trace, texts: Mapping[str, str], folder: Path) -> list[Note]:
    """A note for each decision by a value that was assumed, of a program with these source texts by file."""
    read = {note.site for note in trace.notes if note.code == "assumed-value" and dict(note.detail).get("own")}
    called = {row[SITE]: row[SIGNATURE] for row in trace.rows if row[KIND] in MEETINGS} if read else {}
    used = {note.site for note in trace.notes if note.code == USE} if called else set()
    found: dict[tuple[str, int], Note] = {}
    for site in sorted(read):
        text = texts.get(str(folder / site.file), "")
        calls = {
            other.line: trace.signatures[name].name.partition("::")[2].strip("_")
            for number, name in called.items()
            if (other := trace.sites[number]).file == site.file
        }
        calls = {**{one.line: "" for one in used if one.file == site.file}, **calls}
        with suppress(SyntaxError, ValueError):
            for one in decisions(text, site.line, calls):
                detail = ("read", site.line), ("line", one.call_line), ("call", one.call), ("file", site.file)
                found.setdefault((site.file, one.line), Note(CODE, site._replace(line=one.line), detail))
    return list(found.values())


def decisions(text: str, line: int, calls: Mapping[int, str]) -> list[Decision]:
    """What hangs on a value that a source text has from its line `line`.

    `calls` are collectives by their lines, "" where only parameters are used.

    Raises:
        SyntaxError: it is no Python.
    """
    source = _ValueInSource(ast.parse(text), line)
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.If, ast.While)) and source.depends(node.test):
            behind = source.behind(node)
        elif isinstance(node, ast.For) and source.depends(node.iter) and _selects(node):
            behind = [*node.body]
        else:
            continue
        known = [Decision(node.lineno, at, calls[at]) for at in sorted(calls) if _within(behind, at)]
        known.sort(key=lambda one: not one.call)
        found += [*known, *_static(node.lineno, behind)][:1]
    return found


class _ValueInSource:
    """A file, and the names in it that hold the value."""

    def __init__(self, tree: ast.Module, line: int) -> None:
        self.tree = tree
        self.line = line
        self.parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self.scope: Scope = tree
        for node in ast.walk(tree):  # from the outside in
            if isinstance(node, Function) and _covers(node, line):
                self.scope = node
        self.names: set[str] = set()
        self.kept: set[str] = set()  # attributes and functions, in the whole file
        while self._spread():
            pass

    def _spread(self) -> bool:
        """Follow the value one step; whether that found anything."""
        before = len(self.names), len(self.kept)
        shared = {name for node in ast.walk(self.scope) if isinstance(node, ast.Call) and SHARING.search(_called(node))
                  for argument in node.args for name in _names(argument)}  # fmt: skip
        for node in ast.walk(self.tree):
            match node:
                case ast.Assign(value=value, targets=targets) if self.depends(value):
                    self._bind(targets, shared)
                case (
                    ast.AnnAssign(value=ast.expr() as value, target=target)
                    | ast.AugAssign(value=value, target=target)
                    | ast.NamedExpr(value=value, target=target)
                ) if self.depends(value):
                    self._bind([target], shared)
                case ast.If(test=test) | ast.While(test=test) if self.depends(test):  # what it sets depends on it too
                    set_there = [part for own in (*node.body, *node.orelse) for part in ast.walk(own) if _is_set(part)]
                    self._bind([part for part in set_there if isinstance(part, ast.expr)], shared)
                case ast.Return(value=ast.expr() as value) if self.depends(value) and isinstance(self.scope, Function):
                    if self._scope_of(node) is self.scope:
                        self.kept.add(self.scope.name)
        return before != (len(self.names), len(self.kept))

    def _bind(self, targets: Sequence[ast.expr], shared: set[str]) -> None:
        for target in targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Name) and part.id not in shared and self._scope_of(part) is self.scope:
                    self.names.add(part.id)
                elif isinstance(part, ast.Attribute) and part.attr not in shared:
                    self.kept.add(part.attr)

    def depends(self, node: ast.expr) -> bool:
        """Whether an expression is made of the value."""
        if _covers(node, self.line) and node.lineno == self.line:
            return True
        for part in _values(node):
            if isinstance(part, ast.Attribute) and part.attr in self.kept:
                return True
            own = isinstance(part, ast.Name) and part.id in self.names and self._scope_of(part) is self.scope
            if own or (isinstance(part, ast.Name) and part.id in self.kept):
                return True
        return False

    def _scope_of(self, node: Part) -> Part:
        while node in self.parents and not isinstance(node := self.parents[node], Function):
            pass
        return node

    def behind(self, node: ast.If | ast.While) -> list[Part]:
        """What runs only where the decision falls one way: its own lines, and those that they leave out."""
        own: list[Part] = [*node.body, *node.orelse]
        found = [*own, *([node.test] if isinstance(node, ast.While) else [])]
        for leaving in (part for one in own for part in _inside(one)):
            loop, function = self._around(node, Loop), self._scope_of(node)
            if isinstance(leaving, ast.Continue) and loop is not None:
                found += self._after(node, loop)
            elif isinstance(leaving, ast.Break) and loop is not None:
                found.append(loop)
            elif isinstance(loop, ast.For) and _is_set(leaving) and _names(leaving) & _names(loop.iter):
                found.append(loop)  # what the loop iterates over is told to stop
            elif isinstance(leaving, ast.Return):
                found += [loop] if loop is not None else self._after(node, function)
        return found

    def _around(self, node: Part, kinds: type | object) -> Part | None:
        while node in self.parents and not isinstance(node, Function):
            node = self.parents[node]
            if isinstance(node, kinds):  # type: ignore[arg-type]  # a union of classes
                return node
        return None

    def _after(self, node: Part, end: Part) -> list[Part]:
        """What comes behind a statement within another one."""
        last = getattr(node, "end_lineno", 0)
        return [one for one in ast.walk(end) if isinstance(one, ast.stmt) and one.lineno > last]


def _values(node: Part) -> Iterator[Part]:
    """The parts of an expression, but for what a function makes the same on all ranks."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.Call) and SHARING.search(_called(child))):
            yield from _values(child)


def _inside(node: Part) -> Iterator[Part]:
    """What a statement does itself, without functions, and without what leaves loops inside it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (Function, ast.Lambda)):
            continue
        for part in _inside(child):
            if not (isinstance(node, Loop) and isinstance(part, (ast.Break, ast.Continue))):
                yield part


def _static(line: int, parts: Sequence[Part]) -> Iterator[Decision]:
    """Calls that ranks wait in, by their names."""
    for part in parts:
        for node in ast.walk(part):
            if isinstance(node, ast.Call) and WAITING.match(_called(node)):
                yield Decision(line, node.lineno, _called(node))


def _selects(loop: ast.For) -> bool:
    """Whether a loop calls what it selects by its own variable, as one of a list of modules."""
    chosen = _names(loop.target)
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript) and _names(node.value.slice) & chosen:
            chosen |= {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    called = [node.func for node in ast.walk(loop) if isinstance(node, ast.Call)]
    by_index = any(_names(func.slice) & chosen for func in called if isinstance(func, ast.Subscript))
    return by_index or any(func.id in chosen for func in called if isinstance(func, ast.Name))


def _is_set(node: Part) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store)


def _called(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def _names(node: Part) -> set[str]:
    return {
        str(getattr(part, "id", getattr(part, "attr", "")))
        for part in ast.walk(node)
        if isinstance(part, (ast.Name, ast.Attribute))
    }


def _covers(node: Part, line: int) -> bool:
    return getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", 0) or 0)


def _within(parts: Sequence[Part], line: int) -> bool:
    return any(_covers(part, line) for part in parts)
