"""Edits: one generic script takes the first finding's edit, applies it and runs again, until there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.checks._edits import edit_of
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Site

PAGES = Path(__file__).parent / "pages"
MENDED = {
    "loss-broadcast": "loss-broadcast",
    "stale-read": "stale-read",
    "result-used-without-wait": "unsynchronized-access",
    "step-time-without-wait": "wrong-timing",
    "pinned-but-blocking": "host-sync",
    "number-moved-each-step": "pageable-copy",
    "pageable-batches": "pageable-copy",
    "made-on-cpu-in-forward": "created-on-cpu",
}


def report_of(program: Path) -> dict:
    command = [sys.executable, "-m", "windtunnel", "run", "--json", "--memory-history", str(program)]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)


def apply(edit: dict) -> None:
    """What an editor does with an edit, knowing nothing of windtunnel."""
    path = Path(edit["file"])
    lines = path.read_text().splitlines(keepends=True)
    before = "".join(lines[: edit["line"] - 1]) + lines[edit["line"] - 1][: edit["column"]]
    after = lines[edit["end_line"] - 1][edit["end_column"] :] + "".join(lines[edit["end_line"] :])
    path.write_text(before + edit["text"] + after)


@pytest.mark.long
@pytest.mark.parametrize("page", sorted(MENDED))
def test_the_first_edit_mends_the_fault(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program.py"
    program.write_text((PAGES / f"{page}.md").read_text().partition("```python\n")[2].partition("```")[0])
    code = MENDED[page]
    before = [finding for finding in report_of(program)["findings"] if finding["code"] == code]
    apply(next(finding["edit"] for finding in before if finding["edit"]))
    report = report_of(program)
    assert report["run"]["program_exit_code"] == 0
    after = [finding for finding in report["findings"] if finding["code"] == code]
    assert len([one for one in after if one["severity"] != "info"]) < len(before)


FORMS = [
    ("host-sync", "    total += loss.item()", "    total += loss.detach()"),
    ("host-sync", "    if loss.item() > 3:", None),
    ("pageable-copy", "x = torch.tensor([1, 2], device='cuda')", None),
    ("wait-missing", "dist.all_reduce(x, async_op=True)", "dist.all_reduce(x)"),
    ("stale-read", "    y = x.sum()", "    torch.cuda.synchronize()\n    y = x.sum()"),
    ("stale-read", "    elif x.sum():", None),
    ("stale-read", "        b=x)", None),
    ("growing-memory", "    total += loss  # and later total.backward()", None),
    ("uninitialized-read", "x = torch.empty(3)", None),
]


@pytest.mark.parametrize(("code", "line", "mended"), FORMS)
def test_a_line_is_edited_where_its_form_is_known(code: str, line: str, mended: str | None) -> None:
    edit = edit_of(Finding(code, "warning", "", "", Site("a.py", 3)), lambda site: line)
    assert mended == (None if edit is None else line[: edit.column] + edit.text + line[edit.end_column :])
