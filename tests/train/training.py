"""A small model, data of the housing example's shape, and a way to run several processes."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

ADAM = functools.partial(torch.optim.Adam, lr=0.01)


def housing(rows: int = 101) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (rows, 13) and targets (rows, 1)."""
    inputs = torch.randn(rows, 13, generator=torch.Generator().manual_seed(3))
    return inputs, inputs[:, :1] * 2


def network(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 1))


def weights(model: nn.Module) -> torch.Tensor:
    """All parameters in one vector on the CPU."""
    return torch.cat([parameter.detach().cpu().reshape(-1) for parameter in model.parameters()])


SHARDED: dict = {} if hasattr(torch.cpu.Stream, "record_event") else {"num_gpus": 8}
"""Options of a trainer that shards: PyTorch 2.6 does so on GPUs alone."""


def launch(processes: int, folder: Path, *arguments: str, gpus: bool = False, program: str = "worker.py") -> Any:
    """Run a program in several processes, on the CPU under torchrun or on emulated GPUs; what rank 0 wrote."""
    assert "WINDTUNNEL_RUN" not in os.environ, "an emulation of this process would reach those that it starts"
    result = folder / "result.json"
    worker = str(Path(__file__).parent / program)
    if gpus:
        start = ["-m", "windtunnel", "run", "--gpus", f"{processes}xV100", "--nproc-per-node", str(processes)]
    else:
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *start, worker, str(result), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(result.read_text())


def launch_trainings(processes: int, folder: Path, *trainings: tuple[str, str, dict], gpus: bool = False) -> list[dict]:
    """What (strategy, data, options) came to, one after another in the same processes of worker.py."""
    return launch(processes, folder, *map(json.dumps, trainings), gpus=gpus)
