"""`python -m windtunnel.demo` and `python -m windtunnel.examples`, which a wheel has as well as a checkout."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel import demo, examples

pytestmark = pytest.mark.long
"""Each starts programs of its own."""


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=True)


def test_the_demo_shows_a_few_lines_and_keeps_the_rest(tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "windtunnel.demo", "--epochs", "3")
    shown = done.stdout.splitlines()
    log = (tmp_path / "runs" / "demo.log").read_text("utf-8")
    assert log.count("\tIn Model: ") == 2 * 3 * demo.STEPS_PER_EPOCH
    assert shown[1] == "  Let's use 2 GPUs"
    between = log.count("\n") - demo.FIRST - demo.LAST
    assert f"  ... {between} lines ..." in shown
    assert len(shown) == 1 + demo.FIRST + 1 + demo.LAST + 2
    assert re.match(r"verdict EMULATED on 2 x Tesla V100", done.stderr)
    assert (tmp_path / "runs" / "demo.html").is_file()


def test_the_examples_are_written_once(tmp_path: Path) -> None:
    assert re.match(r"wrote \d+ files to examples", python(tmp_path, "-m", "windtunnel.examples").stdout)
    assert "has all of them" in python(tmp_path, "-m", "windtunnel.examples").stdout
    assert (tmp_path / "examples" / "gpt.py").read_bytes() == (examples.folder() / "gpt.py").read_bytes()


@pytest.mark.parametrize("module", ["demo", "examples"])
def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, module: str) -> None:
    (tmp_path / "file").write_text("")
    words = ["--folder", "file/below"] if module == "demo" else ["file/below"]
    done = subprocess.run(
        [sys.executable, "-m", f"windtunnel.{module}", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert re.fullmatch(r"windtunnel: .*file/below.*: Not a directory; name another .*\n", done.stderr)
