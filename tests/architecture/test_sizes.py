"""Modules and functions stay small enough to be read in one go."""

import ast

import pytest
from source import Source, sources

MODULE_LINES = 600
FUNCTION_LINES = 60


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


@pytest.mark.parametrize("source", sources(), ids=str)
def test_modules_are_short(source: Source) -> None:
    assert len(source.text.splitlines()) <= MODULE_LINES


@pytest.mark.parametrize("source", sources(), ids=str)
def test_functions_are_short(source: Source) -> None:
    long = {f.name: code_lines(f) for f in source.functions() if code_lines(f) > FUNCTION_LINES}
    assert not long
