"""Modules and functions stay small enough to be read in one go."""

import ast

from source import sources

MODULE_LINES = 600
FUNCTION_LINES = 60


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def test_modules_are_short() -> None:
    lengths = {str(source): len(source.text.splitlines()) for source in sources()}
    assert not {name: lines for name, lines in lengths.items() if lines > MODULE_LINES}


def test_functions_are_short() -> None:
    lengths = {f"{source}:{f.lineno} {f.name}": code_lines(f) for source in sources() for f in source.functions()}
    assert not {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES}
