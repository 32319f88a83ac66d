"""Every row of the kernel tables names the source of its formula, and a test holds it to a number."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from windtunnel.seam.torch import kernels
from windtunnel.seam.torch.scratch import native

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


def test_a_row_has_a_source_and_a_test() -> None:
    tested = set(held())
    assert not [row.operators for row in TABLES if not A_FILE.search(row.source)], "rows that name no source file"
    assert not [row.operators for row in TABLES if not tested & set(row.operators)], "no test has @rows of them"


def test_marks_name_rows() -> None:
    assert set(held()) <= {name for row in TABLES for name in row.operators}
