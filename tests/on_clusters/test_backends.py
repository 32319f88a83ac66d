"""Plans on a real Dask cluster and a real Ray of this machine: the same table as from processes of its own.

They need packages of their own: `make test-plan-backends`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel import planning
from windtunnel.launch import Program
from windtunnel.planning.planner import Question
from windtunnel.planning.rows import Row, Work
from windtunnel.planning.space import parse_axis

PROGRAM = """
import sys, torch
width = int(sys.argv[-1].partition("=")[2])
model = torch.nn.Linear(1024, width, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for step in range(100000):
    model(torch.zeros(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


def rows(folder: Path, backend: str, scheduler: str | None = None) -> list[Row]:
    question = Question(
        Program("script", "train.py"), ("A10", "T4"), (parse_axis("--width=64,16000000"),), folder=str(folder)
    )
    return planning.make(question, Work(), backend=backend, scheduler=scheduler, jobs=2).rows


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    folder = tmp_path_factory.mktemp("program")
    (folder / "train.py").write_text(PROGRAM)
    return folder, rows(folder, "local")


def test_a_dask_cluster_gives_the_same_table(local: tuple[Path, list[Row]]) -> None:
    from dask.distributed import LocalCluster

    folder, expected = local
    assert [row.status for row in expected] == ["fits", "fits", "does not fit", "does not fit"]
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        assert rows(folder, "dask", cluster.scheduler_address) == expected


def test_a_local_ray_gives_the_same_table(local: tuple[Path, list[Row]]) -> None:
    folder, expected = local
    assert rows(folder, "ray") == expected
