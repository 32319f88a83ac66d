"""A kernel's source as plain Python: what Triton's compiler makes of a statement and Python would do differently.

Triton's own interpreter rewrites assignments only. Some expressions of blocks then mean something else than on a GPU,
without an error: `a and b` gives `b`, `a < b < c` forgets the first half, an `if` on a block is always taken
(`CodeGenerator` of triton/compiler/code_generator.py says what the compiler does).
"""

from __future__ import annotations

import ast
import copy

SEMANTIC = "interpreter_semantic"
"""The name by which rewritten code reaches Triton's operations; the interpreter's own."""
HELPERS = "windtunnel_triton"
"""The name by which it reaches `Helpers`."""


def _call(owner: str, name: str, *arguments: ast.expr) -> ast.Call:
    function = ast.Attribute(value=ast.Name(id=owner, ctx=ast.Load()), attr=name, ctx=ast.Load())
    return ast.Call(func=function, args=list(arguments), keywords=[])


def _later(expression: ast.expr) -> ast.Lambda:
    none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(args=none, body=expression)


class Rewriter(ast.NodeTransformer):
    """Rewrites one kernel; `debug` keeps its assertions."""

    def __init__(self, debug: bool) -> None:
        self.debug = debug

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Types are the compiler's business."""
        node.decorator_list, node.returns = [], None
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Numbers that are assigned become tensors."""
        if len(node.targets) > 1:
            raise ValueError("simultaneous multiple assignment is not supported.")
        self.generic_visit(node)
        if not isinstance(node.value, (ast.Tuple, ast.List)):
            node.value = _call(SEMANTIC, "to_tensor", node.value, ast.Constant(value=False))
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        """What counts in a `range` is a tensor, but for `tl.static_range`."""
        self.generic_visit(node)
        called = node.iter.func if isinstance(node.iter, ast.Call) else None
        name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
        if name == "range" and isinstance(node.target, ast.Name):
            value = _call(SEMANTIC, "to_tensor", ast.Name(id=node.target.id, ctx=ast.Load()), ast.Constant(value=False))
            node.body.insert(0, ast.Assign(targets=[copy.copy(node.target)], value=value))
        return node

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> ast.AST:
        """A condition is one value."""
        self.generic_visit(node)
        node.test = _call(HELPERS, "truth", node.test)
        return node

    visit_While = visit_IfExp = visit_If

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """`and` and `or` of blocks work element by element."""
        self.generic_visit(node)
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        found = node.values[0]
        for value in node.values[1:]:
            found = _call(HELPERS, name, found, _later(value))
        return found

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """`not` of a block likewise."""
        self.generic_visit(node)
        return _call(HELPERS, "logical_not", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Several comparisons in one the compiler refuses."""
        if len(node.ops) > 1:
            raise ValueError("simultaneous multiple comparison is not supported")
        return self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """An assertion is a `device_assert`, and left out unless the kernel is compiled for debugging."""
        if not self.debug:
            return ast.Pass()
        self.generic_visit(node)
        return ast.Expr(_call(HELPERS, "asserts", node.test, *([node.msg] if node.msg else [])))


def rewritten(tree: ast.Module, first_line: int, debug: bool) -> ast.Module:
    """A kernel's module of one function, rewritten, with the lines that it has in its file.

    Raises:
        ValueError: the compiler refuses it.
    """
    made: ast.Module = Rewriter(debug).visit(copy.deepcopy(tree))
    ast.fix_missing_locations(made)
    ast.increment_lineno(made, first_line - 1)
    return made
