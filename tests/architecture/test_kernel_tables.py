"""Every row of the kernel tables names the source of its formula, and a test holds it to a number."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from windtunnel.seam.torch import kernels
from windtunnel.seam.torch.scratch import native
from windtunnel.seam.torch.scratch.need import Row

TESTS = Path(__file__).parents[1] / "seam"
TABLES = [row for file in (native, *kernels.files("SCRATCH")) for row in file.SCRATCH]
A_FILE = re.compile(r"[\w/]+\.(cu|cuh|cpp|h)\b")


def held() -> Iterator[str]:
    """The operators that `@rows(...)` names above tests."""
    for path in TESTS.glob("test_kernel_*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for call in getattr(function, "decorator_list", ()):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "rows":
                    yield from (argument.value for argument in call.args if isinstance(argument, ast.Constant))


@pytest.mark.parametrize("row", TABLES, ids=lambda row: row.operators[0])
def test_a_row_has_a_source_and_a_test(row: Row) -> None:
    assert A_FILE.search(row.source), "the row names no source file"
    assert set(row.operators) & set(held()), "no test under tests/seam is marked with @rows of one of its operators"


def test_marks_name_rows() -> None:
    assert set(held()) <= {name for row in TABLES for name in row.operators}
