"""`windtunnel run --json`: one object on stdout, whatever the program prints, and its JSON Schema."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from helpers.schemas import conforms
from windtunnel.cli import group
from windtunnel.reports.schema import Report

STEPS = """
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0.0
for _ in range(12):
    loss = model(torch.ones(4, 8).cuda()).sum()
    loss.backward()
    optimizer.step()
    total += loss.item()
print("the program's own output")
"""


def run(folder: Path, code: str, *options: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a run."""
    done = subprocess.run(
        [sys.executable, "-m", "windtunnel", "run", "--json", "--gpus", "A100", *options, "-c", code],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.long
def test_one_object_is_all_of_stdout(tmp_path: Path) -> None:
    code, stdout, stderr = run(tmp_path, STEPS, "--fail-on", "host-sync")
    report = msgspec.json.decode(stdout, type=Report)  # of the types that the schema is made of
    assert conforms("run", json.loads(stdout))
    assert set(json.loads(stdout)) == set(Report.__annotations__)
    assert stdout.count("\n") == 1
    assert "the program's own output" in stderr
    assert "verdict" not in stderr
    assert code == report["run"]["exit_code"] == 64
    assert report["run"]["program_exit_code"] == 0
    assert report["run"]["gates"]
    assert report["verdict"].startswith("EMULATED on 1 x NVIDIA A100")
    assert report["timing"]["steps"] == 12
    assert {finding["code"] for finding in report["findings"]} >= {"host-sync"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("print(1)", 0),
        ("import sys; sys.exit(3)", 3),
        ("import torch; torch.ones(1, device='cuda'); raise ValueError('no')", 1),
        ("import torch; torch.empty(60 << 30, dtype=torch.uint8, device='cuda')", 65),
    ],
)
def test_it_comes_however_the_program_ends(tmp_path: Path, code: str, exit_code: int) -> None:
    ended, stdout, _ = run(tmp_path, code)
    report = msgspec.json.decode(stdout, type=Report)
    assert ended == report["run"]["exit_code"] == exit_code
    assert conforms("run", json.loads(stdout))


def test_the_schema_names_every_key_of_the_report() -> None:
    schema = json.loads(CliRunner().invoke(group, ["explain", "--schema"]).stdout)
    report = schema["$defs"]["Report"]
    assert set(report["properties"]) == set(Report.__annotations__)
    assert set(report["properties"]) - set(report["required"]) == {"run"}
    assert schema["$schema"].endswith("2020-12/schema")
    assert report["properties"]["findings"]["items"] == {"$ref": "#/$defs/Finding"}
