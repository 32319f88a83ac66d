"""A program's own text, parsed: which statement holds a line, and edits of it."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Loop = ast.For | ast.While | ast.AsyncFor
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


class Edit(NamedTuple):
    """Replace the characters from (`line`, `column`) to (`end_line`, `end_column`), by 1 and by 0, with `text`."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str


class Program:
    """One file of a program."""

    def __init__(self, file: str, text: str) -> None:
        """Parse the text; raises SyntaxError where it is no Python."""
        self.file = file
        self.lines = list(io.StringIO(text))  # as Python counts lines: a form feed ends none
        self.tree = ast.parse(text)

    def calls(self, *names: str) -> list[ast.Call]:
        """The calls of functions or classes of these names, however they were imported."""
        aliases = {
            alias.asname
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
            if alias.asname and alias.name in names
        }
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        return [call for call in calls if name_of(call.func) in {*names, *aliases}]

    def imports(self, module: str) -> bool:
        """Whether a module is imported under its own name."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.Import)]
        return any(alias.name.partition(".")[0] == module and not alias.asname for one in found for alias in one.names)

    def loop_target(self, name: str) -> str:
        """Whether loops alone give a variable (`x = x.to(...)` keeps it): "name" of `for x`, "tuple" of `for x, y`."""
        loops = [one for one in ast.walk(self.tree) if isinstance(one, ast.For) and name in stored(one.target)]
        assigned = [one for one in ast.walk(self.tree) if isinstance(one, ast.Assign)]
        moved = [target for one in assigned for target, value in pairs(one.targets[0], one.value)
                 if name_of(target) == name == root_of(value)]  # fmt: skip
        given = [one for one in uses(self.tree, name) if isinstance(one.ctx, ast.Store)]
        if not loops or len(loops) + len(moved) != len(given):
            return ""
        return "name" if all(isinstance(one.target, ast.Name) for one in loops) else "tuple"

    def written(self, name: str) -> bool:
        """Whether something may write into a variable's memory: `x[0] =`, `x += 1`, `x.add_(1)`, `out=x`."""
        for node in ast.walk(self.tree):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(one, ast.Subscript | ast.Attribute) and root_of(one) == name for one in targets):
                return True
            if isinstance(node, ast.AugAssign) and root_of(node.target) == name:
                return True
            if isinstance(node, ast.Call) and name_of(node.func).endswith("_") and root_of(node.func) == name:
                return True
            if isinstance(node, ast.keyword) and node.arg == "out" and root_of(node.value) == name:
                return True
        return False

    def holders(self, line: int) -> list[ast.AST]:
        """The nodes that have statements of their own and hold a line, and the statement on it: from the outside."""
        found: list[ast.AST] = [self.tree]
        while True:
            inner = [one for one in statements(found[-1]) if _first(one) <= line <= (one.end_lineno or one.lineno)]
            if not inner:
                return found
            found.append(inner[-1])

    def statement(self, line: int) -> ast.stmt | None:
        """The statement that a line belongs to, where it begins a line and is evaluated once each time it is met."""
        found = self.holders(line)[-1]
        if not isinstance(found, ast.stmt) or isinstance(found, ast.While | Scope | ast.ClassDef | ast.Try):
            return None
        return found if self.begins_line(found) else None

    def begins_line(self, statement: ast.stmt) -> bool:
        """Whether a line of its own can stand before a statement."""
        line = self.lines[statement.lineno - 1]
        return not line[
            : self._column(statement.lineno, statement.col_offset)
        ].strip() and not line.lstrip().startswith("elif")

    def ends_line(self, statement: ast.stmt) -> bool:
        """Whether a line of its own can stand behind a statement."""
        line, column = statement.end_lineno or statement.lineno, statement.end_col_offset or 0
        return self.lines[line - 1].encode()[column:].decode().strip()[:1] in ("", "#")

    def before(self, statement: ast.stmt, words: str) -> Edit:
        """A line of its own before a statement."""
        line = statement.lineno
        return Edit(self.file, line, 0, line, 0, f"{self._indent(line)}{words}\n")

    def after(self, statement: ast.stmt, words: str) -> Edit:
        """A line of its own after a statement, which ends its line."""
        end, indent = statement.end_lineno or statement.lineno, self._indent(statement.lineno)
        if end < len(self.lines):
            return Edit(self.file, end + 1, 0, end + 1, 0, f"{indent}{words}\n")
        column = len(self.lines[end - 1].rstrip("\n"))
        return Edit(self.file, end, column, end, column, f"\n{indent}{words}")

    def behind(self, node: ast.expr | ast.keyword, words: str) -> Edit:
        """Some words right behind an expression."""
        line, column = self.end(node)
        return Edit(self.file, line, column, line, column, words)

    def without(self, call: ast.Call, keyword: ast.keyword) -> Edit | None:
        """A call without a keyword that is not its first argument."""
        parts: list[ast.expr | ast.keyword] = sorted([*call.args, *call.keywords], key=self.end)
        index = parts.index(keyword)
        if not index:
            return None
        (line, column), (end_line, end_column) = self.end(parts[index - 1]), self.end(keyword)
        return Edit(self.file, line, column, end_line, end_column, "")

    def instead(self, node: ast.expr, words: str) -> Edit:
        """Other words in an expression's place."""
        return Edit(self.file, node.lineno, self._column(node.lineno, node.col_offset), *self.end(node), words)

    def joined(self, first: Edit, second: Edit) -> Edit:
        """Two edits as one, which also holds the text between them."""
        last = min(second.line, len(self.lines))
        between = "".join(self.lines[first.end_line - 1 : last])[first.end_column :]
        if second.line <= len(self.lines):
            between = between[: len(between) - len(self.lines[last - 1]) + second.column]
        return Edit(
            self.file, first.line, first.column, second.end_line, second.end_column, first.text + between + second.text
        )

    def with_keyword(self, call: ast.Call, words: str) -> Edit | None:
        """A call with one more keyword; None where it has no argument to stand behind."""
        parts: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        return self.behind(max(parts, key=self.end), f", {words}") if parts else None

    def end(self, node: ast.expr | ast.keyword) -> tuple[int, int]:
        """The line and the column, in characters, at which a node ends."""
        line = node.end_lineno or node.lineno
        return line, self._column(line, node.end_col_offset or 0)

    def _column(self, line: int, offset: int) -> int:
        return len(self.lines[line - 1].encode()[:offset].decode())

    def _indent(self, line: int) -> str:
        text = self.lines[line - 1]
        return text[: len(text) - len(text.lstrip())]


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements that a node holds itself."""
    for field in ("body", "orelse", "finalbody"):
        part = getattr(node, field, [])
        yield from (one for one in part if isinstance(one, ast.stmt)) if isinstance(part, list) else ()
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield from statements(part)


def _first(statement: ast.stmt) -> int:
    decorators = [one for one in getattr(statement, "decorator_list", []) if isinstance(one, ast.expr)]
    return min([statement.lineno, *(one.lineno for one in decorators)])


def name_of(node: ast.AST) -> str:
    """The last name of `a.b.c`, or ""."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """What is assigned to what."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def root_of(node: ast.AST) -> str:
    """The name that `a.b[c].d(...)` begins with, or ""."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return name_of(node)


def stored(node: ast.AST) -> set[str]:
    """The names that are assigned anywhere in a node."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store | ast.Del)}


def names(node: ast.AST) -> set[str]:
    """All names and attributes in a node."""
    return {name for one in ast.walk(node) if (name := name_of(one))}


def scope_of(holders: Sequence[ast.AST]) -> Scope:
    """The innermost function, or the module, that holds a line."""
    return next(one for one in reversed(holders) if isinstance(one, Scope))


def uses(node: ast.AST, name: str) -> list[ast.Name]:
    """All places in a node at which a name stands."""
    return [one for one in ast.walk(node) if isinstance(one, ast.Name) and one.id == name]


def loads(node: ast.AST, name: str) -> list[ast.Name]:
    """The places in a node at which a variable is read."""
    return [one for one in uses(node, name) if isinstance(one.ctx, ast.Load)]


def own_name(scope: Scope, name: str) -> bool:
    """Whether a variable is this function's own: assigned or a parameter here, and in no function inside of it."""
    arguments = (
        [] if isinstance(scope, ast.Module) else [one.arg for one in ast.walk(scope.args) if isinstance(one, ast.arg)]
    )
    inner = [one for one in ast.walk(scope) if isinstance(one, ast.FunctionDef | ast.Lambda) and one is not scope]
    declared = {one for node in ast.walk(scope) if isinstance(node, ast.Global | ast.Nonlocal) for one in node.names}
    return (
        (name in stored(scope) or name in arguments)
        and name not in declared
        and not any(name in names(one) for one in inner)
    )
