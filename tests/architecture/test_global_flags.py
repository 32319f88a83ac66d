"""PyTorch's own test utilities set global flags when they are imported, for the whole worker: no test of ours does.

`torch.testing._internal.common_utils` turns TF32 off and chooses the backends of linear algebra, so that the tests
which come after one that imports it say something else. What needs them runs in a process of its own.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLAGS = "torch.testing._internal.common_"


def imported(tree: ast.AST, inner: bool) -> Iterator[str]:
    """The modules that a module imports when it is imported; with `inner` also those that its functions import."""
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif inner or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            nodes += ast.iter_child_nodes(node)


@cache
def of_tool(name: str) -> frozenset[str]:
    """All that importing a module of `tools` imports, through others of them."""
    path = ROOT / name.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():  # a name in a module
        return frozenset()
    direct = set(imported(ast.parse(file.read_text(encoding="utf-8")), inner=False))
    return frozenset(direct.union(*(of_tool(one) for one in direct if one.startswith("tools."))))


def test_no_test_imports_what_sets_global_flags() -> None:
    wrong = set()
    for file in sorted((ROOT / "tests").rglob("*.py")):
        direct = set(imported(ast.parse(file.read_text(encoding="utf-8")), inner=True))
        found = direct.union(*(of_tool(one) for one in direct if one.startswith("tools.")))
        if any(name.startswith(FLAGS) for name in found):
            wrong.add(str(file.relative_to(ROOT)))
    assert not wrong
