"""`windtunnel verify` with an emulated GPU in the place of a real one, and without any."""

from __future__ import annotations

import json

import pytest

from helpers.schemas import conforms
from windtunnel.analysis import shared_rows
from windtunnel.cli import group
from windtunnel.errors import UsageError
from windtunnel.measure import present

PROGRAM = """
import torch
torch.manual_seed(0)
layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = layer(torch.ones(2048, 64).cuda()).square().mean()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
"""


def test_without_a_gpu_it_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(present, "visible_models", list)
    (tmp_path / "train.py").write_text(PROGRAM)
    with pytest.raises(UsageError, match="this machine has none: run it on a machine with one"):
        group.main(["verify", str(tmp_path / "train.py")], standalone_mode=False)


def test_a_gpu_that_the_catalogue_lacks_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(present, "visible_models", lambda: [("NVIDIA Abacus", 1)])
    (tmp_path / "train.py").write_text(PROGRAM)
    with pytest.raises(UsageError, match="there is no data for 'NVIDIA Abacus'"):
        group.main(["verify", str(tmp_path / "train.py")], standalone_mode=False)


def test_a_program_is_needed():
    with pytest.raises(UsageError, match="no program was given"):
        group.main(["verify", "--stand-in", "V100"], standalone_mode=False)


@pytest.mark.long
def test_a_stand_in_of_the_same_model_is_the_same(windtunnel, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    done = windtunnel("verify", "--stand-in", "V100", "--tolerance", "0", "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("native: EMULATED V100 stands in; emulated: V100\n")
    assert done.stdout.endswith("nothing differs by more than the tolerance\n")
    assert "3 numbers" in done.stdout


@pytest.mark.long
def test_another_model_takes_another_time(windtunnel, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    done = windtunnel("verify", "--stand-in", "V100", "--gpus", "P100", "--json", "train.py")
    found = json.loads(done.stdout)
    assert conforms("verify", found)
    rows = {row["name"]: row["same"] for row in found["rows"]}
    assert (done.returncode, found["same"]) == (1, False)
    assert not rows["time in kernels, ns"]
    assert all(rows[name] for name in ("printed", "exit code", "order of kernels"))


@pytest.mark.long
def test_a_row_to_share_names_no_path_and_holds_both_times(windtunnel, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    done = windtunnel("verify", "--stand-in", "V100", "--share", "row.json", "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    row = shared_rows.load(tmp_path / "row.json")
    assert (row.gpu, row.gpus, row.stand_in) == ("V100-SXM2-16GB", 1, True)
    assert row.program == shared_rows.program_of(PROGRAM.encode())
    assert row.measured.least_ms <= row.measured.median_ms <= row.measured.most_ms
    assert row.predicted.within_ms is not None
    assert row.predicted.within_ms[0] < row.predicted.median_ms < row.predicted.within_ms[1]
    assert str(tmp_path) not in (tmp_path / "row.json").read_text()
