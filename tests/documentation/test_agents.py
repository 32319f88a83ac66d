"""What is for programs and agents is made of the documentation, and what it says works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tools import ROOT
from tools.docs import agent_pages

from windtunnel import manual
from windtunnel.cli import group

FAULT = """
import torch
mask = torch.ones(256, 256)
x = torch.randn(256, 256, device="cuda")
for _ in range(20):
    x = torch.tanh(x) * mask.to("cuda")
"""


def test_it_is_current() -> None:
    command = [sys.executable, "-m", "tools.docs.agent_pages", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_page_is_listed_and_says_what_it_is() -> None:
    text = agent_pages.llms()
    listed = re.findall(r"^- \[.+\]\(([a-z0-9-]+)\.md\): \S.+$", text, re.MULTILINE)
    assert {*listed, "index"} == {path.stem for path in (ROOT / "docs").glob("*.md")}


def test_the_skill_has_the_form_of_one() -> None:
    lines = (ROOT / "SKILL.md").read_text("utf-8").splitlines()
    assert (lines[0], lines[3]) == ("---", "---")
    assert lines[1] == "name: windtunnel"
    assert lines[2].startswith("description: ")
    assert ": " not in lines[2].removeprefix("description: ")  # which would be no YAML
    assert len(lines[2]) < 1024
    assert "](" not in "\n".join(lines).replace("](https", "")


@pytest.mark.parametrize(("name", "start"), [("plan", "# Plans"), ("skill", "---\nname"), ("pages", "# windtunnel\n")])
def test_pages_are_printed(name: str, start: str) -> None:
    done = CliRunner().invoke(group, ["explain", name], catch_exceptions=False)
    assert done.stdout.startswith(start)


@pytest.mark.parametrize("name", ["../README", "checks/host-sync", "", "no-page"])
def test_nothing_else_is_a_page(name: str) -> None:
    assert manual.page(name) is None


@pytest.mark.long
def test_the_program_of_the_page_mends_a_fault(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FAULT)
    page = (ROOT / "docs" / "agents.md").read_text("utf-8")
    (tmp_path / "mend.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    command = [sys.executable, "mend.py", "--gpus", "A100", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "mask = mask.to('cuda')" in (tmp_path / "train.py").read_text()
