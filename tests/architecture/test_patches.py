"""Names of other packages are replaced in one place: the seam's patch table."""

import ast
from collections.abc import Iterator

import pytest
from source import Source, sources

MAY_PATCH = {"seam/patching.py", "seam/torch/patches.py"}


def root(node: ast.expr) -> str | None:
    """The name at the left end of a.b.c or a.b["c"]."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def assigned(tree: ast.Module) -> Iterator[tuple[int, ast.expr]]:
    """(line, target) of everything that is assigned to or deleted."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                for target in targets:
                    elements = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                    yield from ((node.lineno, element) for element in elements)
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                yield node.lineno, target
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[target, *_]):
                yield node.lineno, ast.Attribute(target, "")


def patches(source: Source) -> list[str]:
    """The places where a file replaces an attribute of another package, or an entry of sys.modules."""
    foreign = source.names_from_elsewhere()
    found = []
    for line, target in assigned(source.tree):
        is_module_table = isinstance(target, ast.Subscript) and ast.unparse(target.value) == "sys.modules"
        if root(target) in foreign and (isinstance(target, ast.Attribute) or is_module_table):
            found.append(f"{source}:{line} assigns {ast.unparse(target)}")
    return found


@pytest.mark.parametrize("source", [s for s in sources() if str(s) not in MAY_PATCH], ids=str)
def test_only_the_patch_table_assigns_into_other_packages(source: Source) -> None:
    assert patches(source) == []


def test_a_patch_would_be_seen() -> None:
    text = (
        "import torch\nfrom torch import Tensor as T\ntorch.cuda.is_available = print\nsetattr(T, 'x', 1)\nT.y += 1\n"
    )
    source = Source(sources()[0].path, text)
    assert sorted(patch.split(":")[1].split()[0] for patch in patches(source)) == ["3", "4", "5"]
