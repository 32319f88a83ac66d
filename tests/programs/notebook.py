"""Run a program as a notebook would: cell by cell, showing the value of each cell's last expression.

    python notebook.py PROGRAM.py [ARGUMENTS...]

A line that begins with `# %%` starts a new cell; a program without one is a single cell. `PROGRAM.prelude.py`, where it
exists, runs first and supplies what the program takes for granted, `PROGRAM.after.py` runs last and prints what the
program computed; both share its names. The program sees its own path as `__file__`, its arguments in `sys.argv`, its
folder on `sys.path`.
"""

import ast
import pprint
import sys
import types
from pathlib import Path

from windtunnel import libraries

WIDTH = 79  # IPython's


def cells(source, filename):
    """Yield each cell's statements, with their line numbers in the file."""
    breaks = [number for number, line in enumerate(source.splitlines(), 1) if line.startswith("# %%")]
    statements = ast.parse(source, filename).body
    for start, end in zip([0, *breaks], [*breaks, sys.maxsize], strict=True):
        yield [statement for statement in statements if start < statement.lineno < end]


def run_cell(statements, filename, names):
    """Execute one cell; print its last expression's value unless that is None."""
    last = None
    if statements and isinstance(statements[-1], ast.Expr):
        last = ast.Expression(statements.pop().value)
    exec(compile(ast.Module(statements, []), filename, "exec"), names)
    if last is not None:
        value = eval(compile(last, filename, "eval"), names)
        if value is not None:
            print(pprint.pformat(value, width=WIDTH))


libraries.offer(lambda library: None)  # also on the CPU, without `windtunnel run`


def main(program, *arguments):
    """Run the program's prelude, the program, and what follows it."""
    path = Path(program)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = [program, *arguments]
    sys.path[0] = str(path.resolve().parent)
    for part in (path.with_suffix(".prelude.py"), path, path.with_suffix(".after.py")):
        if part == path or part.exists():
            module.__file__ = str(part)
            for statements in cells(part.read_text(encoding="utf-8"), str(part)):
                run_cell(statements, str(part), module.__dict__)


if __name__ == "__main__":
    main(*sys.argv[1:])
