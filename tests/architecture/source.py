"""The sources of windtunnel and of `tools` as the architecture tests see them: files, layers, imports, functions."""

import ast
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "windtunnel"
TOOLS = ROOT / "tools"
PROGRAMS = (TOOLS / "programs" / "scripts", TOOLS / "behaviour" / "programs")
"""Programs that tools run: no part of them."""


@dataclass(frozen=True)
class Source:
    """One file of a package: of windtunnel, or of `tools`."""

    path: Path
    text: str = field(repr=False)
    package: Path = PACKAGE

    def __str__(self) -> str:
        return self.path.relative_to(self.package).as_posix()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def layer(self) -> str:
        """The folder, or for a module at the top its name: what the table of docs/architecture.md has a row for."""
        first = self.path.relative_to(self.package).parts[0]
        return first.removesuffix(".py")

    def imports(self) -> list[tuple[int, str]]:
        """(line, full dotted name) of everything imported anywhere in the file."""
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found += [(node.lineno, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = self._absolute(node)
                found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
        return found

    def names_from_elsewhere(self, scope: ast.AST) -> set[str]:
        """The names that imports of other packages bind in a scope, the functions inside it left out."""
        names = set()
        waiting = list(ast.iter_child_nodes(scope))
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Import):
                names |= {a.asname or a.name.split(".")[0] for a in node.names if a.name.split(".")[0] != "windtunnel"}
            elif isinstance(node, ast.ImportFrom) and self._absolute(node).split(".")[0] != "windtunnel":
                names |= {alias.asname or alias.name for alias in node.names}
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                waiting += ast.iter_child_nodes(node)
        return names

    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = (self.package.name, *self.path.relative_to(self.package).parts)[: -node.level]
        return ".".join((*package, node.module) if node.module else package)


@cache
def sources() -> list[Source]:
    """Every Python file of the package, read once."""
    return [Source(path, path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))]


@cache
def tools() -> list[Source]:
    """Every Python file of `tools`, but for the programs that they run."""
    paths = [path for path in sorted(TOOLS.rglob("*.py")) if not path.is_relative_to(PROGRAMS[0])]
    paths = [path for path in paths if not path.is_relative_to(PROGRAMS[1])]
    return [Source(path, path.read_text(encoding="utf-8"), TOOLS) for path in paths]
