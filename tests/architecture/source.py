"""The sources of understudy as the architecture tests see them: files, layers, imports, functions."""

import ast
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "understudy"


@dataclass(frozen=True)
class Source:
    """One file of the package."""

    path: Path
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.path.relative_to(PACKAGE).as_posix()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def layer(self) -> str:
        """The folder, or for a module at the top its name: what DESIGN.md's table has a row for."""
        first = self.path.relative_to(PACKAGE).parts[0]
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

    def names_from_elsewhere(self) -> dict[str, str]:
        """The file's names that an import of another package binds, and where they come from."""
        names = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    names[alias.asname or alias.name.split(".")[0]] = alias.name
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{self._absolute(node)}.{alias.name}"
        return {name: origin for name, origin in names.items() if origin.split(".")[0] != "understudy"}

    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = ("understudy", *self.path.relative_to(PACKAGE).parts)[: -node.level]
        return ".".join((*package, node.module) if node.module else package)


def sources() -> list[Source]:
    """Every Python file of the package."""
    return [Source(path, path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))]
