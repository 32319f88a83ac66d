"""Runs the command line as a person does: another process, its streams apart."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MOST_S = 120
"""Of a processor's time, for each process: on a busy machine the wall clock says little."""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def windtunnel(tmp_path: Path) -> Run:
    """`windtunnel("run", "x.py")` in an empty folder; `input` and `env` as keywords."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, resource.RLIM_INFINITY))

    def run(*arguments: str, env: dict[str, str] | None = None, **options: object) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("WINDTUNNEL_")}
        return subprocess.run(
            [sys.executable, "-m", "windtunnel", *arguments],
            cwd=tmp_path,
            env={**variables, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=5 * MOST_S,  # one that waits for ever
            preexec_fn=limit,
            **options,
        )

    return run
