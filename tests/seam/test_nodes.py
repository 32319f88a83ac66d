"""On which node a rank works, by what its launcher says, and the report's line where there are several."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from windtunnel.seam.torch.state.ranks import node_of, ranks_per_node

PROGRAM = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl", rank=int(os.environ["SLURM_PROCID"]), world_size=int(os.environ["SLURM_NTASKS"]))
torch.cuda.set_device(int(os.environ["SLURM_LOCALID"]))
dist.all_reduce(torch.ones(1000, device="cuda"))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("given", "node"),
    [
        ({}, 0),
        ({"GROUP_RANK": "2"}, 2),
        ({"GROUP_RANK": "1", "SLURM_NODEID": "0"}, 1),
        ({"SLURM_NODEID": "3", "SLURM_PROCID": "9", "SLURM_NTASKS": "12", "SLURM_NNODES": "4"}, 3),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_NNODES": "2"}, 1),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_NNODES": "2"}, 0),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_NNODES": "1"}, 0),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "1", "SLURM_NNODES": "2(x2)"}, 0),
        ({"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "6", "OMPI_MCA_orte_num_nodes": "3"}, 2),
    ],
)
def test_the_launcher_says_which_node(given: dict[str, str], node: int) -> None:
    assert node_of(given) == node


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        ({}, 0),
        ({"RANK": "0", "WORLD_SIZE": "8"}, 0),
        ({"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "8"}, 8),
        ({"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "8"}, 0),
        ({"SLURM_NTASKS": "12", "SLURM_NNODES": "4"}, 3),
        ({"SLURM_NTASKS": "4", "SLURM_NNODES": "1"}, 0),
        ({"OMPI_COMM_WORLD_SIZE": "6", "OMPI_MCA_orte_num_nodes": "3"}, 2),
    ],
)
def test_the_launcher_says_how_many_ranks_a_node_has(given: dict[str, str], ranks: int) -> None:
    assert ranks_per_node(given) == ranks


def port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        number: int = listener.getsockname()[1]
        return number


@pytest.mark.long
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("numbered", [True, False])
def test_tasks_of_slurm_on_several_nodes_meet_by_a_network_and_are_told(tmp_path, nodes, numbered):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    each, free_port = 2 // nodes, port()
    tasks = []
    for rank in range(2):
        slurm = {"SLURM_PROCID": rank, "SLURM_NTASKS": 2, "SLURM_NNODES": nodes, "SLURM_LOCALID": rank % each}
        if numbered:
            slurm["SLURM_NODEID"] = rank // each
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port, "SLURM_JOB_ID": free_port, **slurm}
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        command = [
            sys.executable,
            "-m",
            "windtunnel",
            "run",
            "--gpus",
            f"{each}xA100",
            "--network",
            "p4d",
            str(program),
        ]
        tasks.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    reports = [task.communicate(timeout=120)[1] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], reports
    assert [f"{nodes} nodes, AWS p4d" in report for report in reports] == [nodes > 1] * 2, reports
