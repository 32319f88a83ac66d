"""`windtunnel doctor`: what is there, what is missing, and the command that fixes it."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from helpers.schemas import conforms
from windtunnel import doctor


def test_a_machine_that_can_emulate_has_no_problem(windtunnel) -> None:  # mission 1
    done = windtunnel("doctor", "--json")
    assert done.returncode == 0
    lines = json.loads(done.stdout)
    assert conforms("doctor", lines)
    assert [line["text"] for line in lines if line["state"] == "problem"] == []
    subjects = [line["subject"] for line in lines]
    assert {"Python", "PyTorch", "CPU threads", "child processes", "NVIDIA driver", "GPUs"} <= set(subjects)
    assert subjects.count("PyTorch hook") > 10


@pytest.mark.long
def test_hooks_are_counted_unless_asked_for(windtunnel) -> None:
    assert "private hooks are as expected" in windtunnel("doctor").stdout
    assert windtunnel("doctor", "-v").stdout.count("PyTorch hook:") > 10


@pytest.mark.parametrize(
    ("version", "text", "advice"),
    [
        (None, "not installed", 'pip install "windtunnel[torch]"'),  # mission 5
        (
            "2.5.1+cpu",
            "PyTorch 2.5.1+cpu is older than 2.6 (tested are 2.6.0, 2.13.0 and 2.14.1)",
            "pip install torch==",
        ),
    ],
)
def test_a_missing_or_old_torch_is_named_with_what_to_do(monkeypatch, version, text, advice) -> None:
    monkeypatch.setattr(doctor, "installed", lambda name: version)
    line = next(line for line in doctor.diagnose() if line.subject == "PyTorch")
    assert line.state == "problem"
    assert line.text.startswith(text)
    assert line.advice.startswith(advice)


def test_every_extra_for_users_says_what_it_adds() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    for_developers = {"dev", "integrations", "bench", "conformance", "libraries", "cuda-libraries", "docs", "all"}
    assert extras.keys() - for_developers == doctor.EXTRAS.keys()
    for name, (packages, _) in doctor.EXTRAS.items():
        wanted = [re.split(r"[><=;\[]", one)[0] for one in extras[name] if not one.startswith("windtunnel[")]
        assert {*packages} - {*wanted} <= {"jinja2"}, name  # which [torch] has of [report]
        assert {*wanted} <= {*packages}, name
    lines = {line.subject: line for line in doctor._extras()}
    assert lines["extra report"].state == "ok"
    assert all(line.advice == f'pip install "windtunnel[{subject[6:]}]"' for subject, line in lines.items()
               if line.state == "absent")  # fmt: skip
