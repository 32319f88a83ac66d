"""pytest plugin: lets the documents' tests, which say `windtunnel.emulate("2xV100")`, run on the GPUs that there are.

On real GPUs `emulate` installs nothing. A test that then asks the emulation for something (its trace, its machine, an
option) is not run there. Elsewhere it emulates as many GPUs of the run's own model. `windtunnel run` in a subprocess is
treated the same way. Each test's outcome is a line of the file that HARDWARE_RESULTS names.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

GPUS = int(os.environ["HARDWARE_GPUS"])
MODEL = os.environ["HARDWARE_MODEL"]  # "" on real GPUs
RESULTS = Path(os.environ["HARDWARE_RESULTS"])
STICKY = ("device-side assert", "illegal memory access", "illegal instruction", "unspecified launch failure")
"""After these a process can no longer use CUDA."""
BROKEN = 77
DROPPED, DROPPED_WITH_VALUE = {"-q"}, {"--seed"}


class RealGpus:
    """What stands where a test expects the session of an emulation."""

    def __getattr__(self, name: str) -> Any:
        pytest.skip(f"asks the emulation for its {name}")


def pytest_configure(config: pytest.Config) -> None:
    """Replace `emulate` and `subprocess.run`, in this process of pytest's own."""
    import windtunnel
    import windtunnel.session

    emulate = windtunnel.session.emulate
    windtunnel.emulate = windtunnel.session.emulate = _emulate_with(emulate)
    stock = subprocess.run

    def run(command: Any, *args: Any, **keywords: Any) -> Any:
        return stock(rewritten(command) if isinstance(command, list) else command, *args, **keywords)

    subprocess.run = run  # type: ignore[assignment]


def _emulate_with(emulate: Callable[..., Any]) -> Callable[..., Any]:
    @contextlib.contextmanager
    def emulated(gpus: str | int = "2", **options: Any) -> Iterator[Any]:
        if not MODEL:
            if options:
                pytest.skip(f"asks the emulation for {', '.join(sorted(options))}")
            at_most(str(gpus), GPUS + 1)  # the documents' two are often one more than a test uses
            forget()
            yield RealGpus()
            return
        with emulate(at_most(str(gpus), GPUS + 1), **options) as session:
            yield session

    return emulated


def forget() -> None:
    """Leave nothing of the tests before in the allocators, where an emulation would begin with new ones."""
    import gc

    import torch

    for name in ("last_exc", "last_value", "last_traceback"):  # pytest's, of a test that failed, with its tensors
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()
    if torch.cuda.is_initialized():
        torch._C._cuda_clearCublasWorkspaces()
        for index in range(torch.cuda.device_count()):
            torch.backends.cuda.cufft_plan_cache[index].clear()
            torch.cuda.reset_peak_memory_stats(index)
            torch.cuda.reset_accumulated_memory_stats(index)
        torch.cuda.empty_cache()


def at_most(spec: str, most: int) -> str:
    """The spec for the run's own GPUs, as many as asked for where there are so many; skips a test that needs more."""
    from windtunnel import gpus

    count = len(gpus.parse(spec))
    if count > max(most, 2):
        pytest.skip(f"needs {count} GPUs")
    return f"{min(count, GPUS)}x{MODEL}"


def rewritten(command: list[str]) -> list[str]:
    """A command of `windtunnel run` as this side runs it."""
    head, rest = command[:4], list(command[4:])
    if [str(word) for word in head[1:]] != ["-m", "windtunnel", "run"]:
        if [str(word) for word in head[1:3]] == ["-m", "windtunnel"] and not MODEL:
            pytest.skip("asks for a command of windtunnel's own")
        return command
    if MODEL:
        return [*head, *(at_most(w, GPUS) if before == "--gpus" else w for before, w in zip(["", *rest], rest))]  # noqa: B905
    return _without_windtunnel(rest)


def _without_windtunnel(rest: list[str]) -> list[str]:
    ranks: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        option = rest.pop(0)
        if option == "--gpus":
            at_most(rest.pop(0), GPUS)
        elif option == "--nproc-per-node":
            ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", rest.pop(0)]
        elif option == "--no-python":
            return rest
        elif option in DROPPED_WITH_VALUE:
            rest.pop(0)
        elif option not in DROPPED:
            pytest.skip(f"asks `windtunnel run` for {option}")
    return [sys.executable, *ranks, *rest]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write an outcome down; where CUDA is beyond use, end, and the next process goes on with what is left."""
    if report.when == "call" or report.outcome != "passed":
        why = str(getattr(getattr(report.longrepr, "reprcrash", None), "message", "") or report.longrepr or "")
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            why = str(report.longrepr[2])
        with RESULTS.open("a", encoding="utf-8") as file:
            line = {"test": report.nodeid, "outcome": report.outcome, "why": why.split("\n")[0][:200]}
            file.write(json.dumps(line) + "\n")
        if not MODEL and any(words in str(report.longrepr) for words in STICKY):
            os._exit(BROKEN)
