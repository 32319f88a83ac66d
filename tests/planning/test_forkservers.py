"""Rehearsals that are forks of a Python with the program's libraries: the same results as of Pythons of their own."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from windtunnel.forkserver import Arguments, first_imports
from windtunnel.launch import Program
from windtunnel.planning.cache import Cache
from windtunnel.planning.forkservers import ForkServers
from windtunnel.planning.planner import Planner, Question
from windtunnel.planning.pools import LocalPool
from windtunnel.planning.rehearsal import Job, Rehearsed, rehearse
from windtunnel.planning.rows import Row, Work, rows_of
from windtunnel.planning.space import parse_axis

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process with PyTorch in it fork")

PROGRAM = """
import argparse
import os
import random
import torch
from shapes import WIDTH

print(os.environ["SCALE"])
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=1)
batch = parser.parse_args().batch
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4096), torch.nn.Dropout(), torch.nn.Linear(4096, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(10_000):
    model(torch.zeros(batch, WIDTH, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
OPTIONS = {"no_data": True, "overcommit": True, "stop_after": 3}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "shapes.py").write_text("WIDTH = 1024\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALE", "1")
    return tmp_path


def words(folder: Path, text: str) -> list[str]:
    (folder / "script.py").write_text(text)
    return [ast.unparse(statement) for statement in first_imports(folder / "script.py")]


def test_a_program_begins_with_its_imports_up_to_what_does_more(folder: Path) -> None:
    text = '"""Trains."""\nfrom __future__ import annotations\nimport os, sys\nfrom a.b import c\nN = 3\ndef f(): ...\n'
    first = ["from __future__ import annotations", "import os", "import sys", "from a.b import c"]
    assert words(folder, f"{text}import json\n") == [*first, "import json"]
    assert words(folder, f"{text}os.environ['X'] = '1'\nimport json\n") == first
    assert words(folder, "if True: import json\nimport os\n") == []
    assert words(folder, "import os\nthis is no Python") == []


def test_modules_of_the_program_are_looked_into(folder: Path) -> None:
    (folder / "quiet.py").write_text("import json\nimport script\nclass A: ...\n")
    (folder / "loud.py").write_text("import json\nprint(json)\n")
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").write_text("from .inner import x\nfrom . import inner\n")
    (folder / "pack" / "inner.py").write_text("import math\nx = 1\n")
    assert words(folder, "import quiet\nimport os") == ["import json", "import os"]
    assert words(folder, "from loud import json\nimport os") == ["import json"]
    assert words(folder, "from pack import inner\nimport os") == ["import math", "import os"]


def test_arguments_note_who_reads_them() -> None:
    arguments = Arguments(["train.py", "--fast"])
    assert (arguments[0], bool(arguments), arguments.read) == ("train.py", True, False)
    assert (arguments[1:], arguments.read) == (["--fast"], True)


def plain(found: Rehearsed) -> Rehearsed:
    return replace(found, measurement=replace(found.measurement, seconds=0.0, resident_bytes=0))


@pytest.mark.long
def test_a_fork_gives_what_a_python_of_its_own_gives(folder: Path) -> None:
    jobs = [
        Job(Program("script", "train.py", ("--batch", "4")), "A100", OPTIONS),
        Job(Program("script", "train.py", ("--batch", "8")), "T4", {**OPTIONS, "overcommit": False}),
        Job(Program("script", "train.py", ("--bach", "8")), "T4", OPTIONS),
    ]
    servers = ForkServers()
    try:
        served = [rehearse(job, servers) for job in jobs]
        assert servers.forks == 3
    finally:
        servers.close()
    assert [found.measurement.status for found in served] == ["ran", "ran", "failed"]
    assert "unrecognized arguments: --bach" in served[2].measurement.message
    assert served[0].trace is not None
    assert [plain(found) for found in served] == [plain(rehearse(job)) for job in jobs]


@pytest.mark.long
def test_a_program_whose_libraries_read_its_arguments_starts_anew(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path_factory.mktemp("library")
    (library / "flags.py").write_text("import sys\nBATCH = int(sys.argv[-1])\n")
    (folder / "train.py").write_text(
        f"from flags import BATCH\n{PROGRAM}".replace("parser.parse_args().batch", "BATCH")
    )
    monkeypatch.setenv("PYTHONPATH", str(library), prepend=":")
    servers = ForkServers()
    try:
        found = [
            rehearse(Job(Program("script", "train.py", (batch,)), "A100", OPTIONS), servers) for batch in ("1", "50000")
        ]
        assert servers.forks == 0
    finally:
        servers.close()
    small, large = (one.measurement.devices[0].allocated_bytes for one in found)
    assert small < large


@pytest.mark.long
def test_a_plan_gives_the_same_table_with_and_without_forks(folder: Path) -> None:
    question = Question(Program("script", "train.py"), ("A10", "T4"), (parse_axis("--batch=64,2000000"),))

    def table(servers: ForkServers | None) -> list[Row]:
        pool = LocalPool(2, servers)
        try:
            return rows_of(Planner(question, pool, Cache(None)).run(), question, Work())
        finally:
            pool.close()

    served = table(ForkServers())
    assert {row.status for row in served} == {"fits", "does not fit"}
    assert served == table(None)
