"""Ranks as forks of one process that has imported PyTorch: a program takes seconds."""

from __future__ import annotations

import atexit
import importlib
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from windtunnel import agent

LIMIT_S = 300.0
FIRST = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel")


def prepare() -> None:
    """Import what programs import."""
    for name in FIRST:
        importlib.import_module(name)


def fork(program: Sequence[str], variables: Mapping[str, str], folder: Path) -> int:
    """A process that runs a program as a rank."""
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        _end(_become(program, variables, folder))
    return process


def _become(program: Sequence[str], variables: Mapping[str, str], folder: Path) -> int:
    """Run the program as Python would; its exit code."""
    import torch

    from windtunnel.session import install_from_environment

    os.environ.clear()
    os.environ.update(variables)
    out = os.open(folder / f"{os.getpid()}.out", os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    try:
        torch.set_num_threads(1)
        install_from_environment("torch")
        sys.argv = [*program]
        runpy.run_path(program[0], run_name="__main__")
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception as error:  # noqa: BLE001  as Python itself does with what nobody caught
        sys.last_value = error
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """End after what Python does at its end but for taking PyTorch apart, which takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def waited(processes: set[int]) -> int:
    """The exit code of the first rank that failed; ranks that are left then have a while to end."""
    left, first, until = set(processes), 0, time.monotonic() + LIMIT_S
    while left:
        process, status = os.waitpid(-1, os.WNOHANG)
        if not process:
            if time.monotonic() > until:
                for one in left:
                    os.kill(one, signal.SIGKILL)
                until = float("inf")
            time.sleep(0.01)
            continue
        left.discard(process)
        code = os.waitstatus_to_exitcode(status)
        if code and not first:
            first = code if code > 0 else 128 - code
            until = min(until, time.monotonic() + (0.0 if code == agent.START_ANEW else agent.GRACE_S))
    return first
