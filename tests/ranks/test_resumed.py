"""Files that an earlier attempt to play a cluster may have written, and those that it has not."""

import sys
import time
from types import SimpleNamespace

import pytest

from windtunnel import variables
from windtunnel.seam.torch.distributed import resumed


@pytest.mark.parametrize(("place", "is_noted"), [("", True), ("python/lib", False), ("run", False)])
def test_a_new_file_is_noted_but_for_packages_that_are_installed_meanwhile(tmp_path, monkeypatch, place, is_noted):
    run, folder = tmp_path / "run", tmp_path / place
    run.mkdir()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "last.pt").write_text("4")
    monkeypatch.setenv(variables.FOLDER, str(run))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "python"))
    time.sleep(0.01)  # the file is older than the attempt that reads it
    (run / variables.EARLIER).write_text("0.0")
    opened, _ = resumed.patches(SimpleNamespace(groups=SimpleNamespace(line="train.py:7")))
    opened.value(folder / "last.pt").close()
    assert bool(list(run.glob("*.resumed"))) == is_noted
