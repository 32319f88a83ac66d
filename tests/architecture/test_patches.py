"""Names of other packages are replaced in one place: the seam's patch table."""

import ast
from collections.abc import Iterator

from source import Source, sources

MAY_PATCH = {"seam/patching.py", "arrivals.py"}
"""The second one replaces `sys.exit` for ranks, before anything of the seam is imported."""


def root(node: ast.expr) -> str | None:
    """The name at the left end of a.b.c or a.b["c"]."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def targets(node: ast.AST) -> list[ast.expr]:
    """What a statement assigns to or deletes."""
    match node:
        case ast.Assign(targets=found) | ast.Delete(targets=found):
            return [part for target in found for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return [target]
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[target, *_]):
            return [ast.Attribute(target, "")]
    return []


def is_patch(target: ast.expr, foreign: set[str]) -> bool:
    """Whether a target belongs to another package; switches and hooks that are there to be set do not count."""
    text = ast.unparse(target)
    if root(target) not in foreign or text.startswith("torch.backends.") or text == "sys.excepthook":
        return False
    return isinstance(target, ast.Attribute) or text.startswith("sys.modules[")


def patches(source: Source, node: ast.AST | None = None, foreign: frozenset[str] = frozenset()) -> Iterator[str]:
    """The places where a file replaces an attribute of another package, or an entry of sys.modules."""
    node = source.tree if node is None else node
    if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
        if not isinstance(node, ast.Module):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            foreign -= {argument.arg for argument in every if argument is not None}
        foreign |= source.names_from_elsewhere(node)
    for target in targets(node):
        if is_patch(target, set(foreign)):
            yield f"{source}:{node.lineno} assigns {ast.unparse(target)}"
    for child in ast.iter_child_nodes(node):
        yield from patches(source, child, foreign)


def test_only_the_patch_table_assigns_into_other_packages() -> None:
    assert not [patch for source in sources() if str(source) not in MAY_PATCH for patch in patches(source)]


PATCHES = """
import torch
from torch import Tensor as T
torch.cuda.is_available = print
setattr(T, "x", 1)
T.y += 1
def f(torch):
    torch.fine = 1
def g():
    from jax import Array
    del Array.at
"""


def test_a_patch_would_be_seen() -> None:
    source = Source(sources()[0].path, PATCHES)
    assert [patch.split()[-1] for patch in patches(source)] == ["torch.cuda.is_available", "T.", "T.y", "Array.at"]
