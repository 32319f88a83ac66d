"""What the program's source says of a function that a stack names: whether it hands out one thing after another."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache

ITEMS = ("__next__", "__getitem__", "__getitems__", "__iter__")
"""Methods by which datasets and loaders are asked."""


@lru_cache(maxsize=256)
def is_generator(file: str, line: int, function: str) -> bool:
    """Whether a function yields, or is a method that gives the next of many."""
    return function in ITEMS or any(
        name == function and first <= line <= last for first, last, name in _generators(file)
    )


@lru_cache(maxsize=64)
def _generators(file: str) -> tuple[tuple[int, int, str], ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and _yields(node):
            found.append((node.lineno, node.end_lineno or node.lineno, node.name))
    return tuple(found)


def _yields(function: ast.FunctionDef) -> bool:
    """Whether it does so itself, not a function in it."""
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            left += ast.iter_child_nodes(node)
    return False
