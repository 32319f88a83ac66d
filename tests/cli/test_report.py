"""What the commands on files say of what they cannot report on, and of a run that had nothing to report."""

from __future__ import annotations

import pytest

PROGRAM = "first.py is a Python program: `windtunnel run first.py` runs it and reports"


@pytest.mark.parametrize("command", [["report"], ["memory"], ["compare", "first.py"]])
def test_a_program_is_no_recording(windtunnel, tmp_path, command):
    (tmp_path / "first.py").write_text("print(1)\n")
    done = windtunnel(*command, "first.py")
    assert done.returncode == 2
    assert (
        done.stderr.strip() == "windtunnel: first.py is a Python program: `windtunnel run first.py` runs it and reports"
    )


@pytest.mark.long
def test_a_run_without_gpus_says_so(windtunnel, tmp_path):
    (tmp_path / "first.py").write_text("import torch; assert not torch.cuda.is_available()\n")
    done = windtunnel("run", "--gpus", "0", "first.py")
    assert (done.returncode, done.stderr) == (0, "windtunnel: no report: with `--gpus 0` the program had no GPU\n")
