"""docs/first-change.md: the check that it adds finds what its program has wrong, at that line."""

import re
from pathlib import Path

from windtunnel.checks import Check
from windtunnel.session import emulate

PAGE = (Path(__file__).parents[2] / "docs" / "first-change.md").read_text(encoding="utf-8")


def test_the_check_finds_the_line_of_the_program(tmp_path, monkeypatch):
    (program,) = re.findall(r"````markdown\n.*?```python\n(.*?)```\n````", PAGE, re.DOTALL)
    (source,) = re.findall(r'^````python\n("""The check.*?)^````$', PAGE, re.DOTALL | re.MULTILINE)
    names = {"__name__": "sleeping_loop"}
    exec(source, names)
    (check,) = [
        value() for value in names.values() if isinstance(value, type) and issubclass(value, Check) and value != Check
    ]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(program, encoding="utf-8")
    with emulate("V100") as session:
        exec(compile(program, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})
    for record in session.trace:
        if record.kind in check.kinds:
            check.see(record, session.trace)
    (finding,) = check.findings(session.trace)
    marked = [number for number, line in enumerate(program.splitlines(), 1) if f"# finding: {check.code}" in line]
    assert [finding.site.line] == marked
    assert "10 times, 100 ms in all" in finding.message
