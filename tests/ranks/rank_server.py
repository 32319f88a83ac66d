"""Runs programs of several ranks, forked from one process that has imported PyTorch: a program takes about a second.

Reads requests from stdin, a line of JSON each: {"program", "ranks", "gpus", "stuck_after", "no_data", "plain"}, where
`plain` asks for PyTorch without an emulation; answers on stdout with the findings, each rank's exit status, how long it
took from the first rank's start to the last one's end, and where the trace of a rank, retimed to its own GPUs, is not
the same.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NoReturn

import torch
import torch._dynamo  # which optimizers import: once for all ranks
import torch.distributed.fsdp
import torch.distributed.tensor.parallel

from windtunnel import checks, launch
from windtunnel.analysis.retime import gpus_of, retime
from windtunnel.session import install_from_environment
from windtunnel.trace.trace import Trace

MOST_S = 60.0


def main() -> None:
    """Serve until stdin ends; a rank, whose program has come to its end, ends here."""
    while line := sys.stdin.readline():
        request = json.loads(line)
        answer = serve(request)
        if answer is None:
            end(0)
        sys.__stdout__.write(json.dumps(answer) + "\n")
        sys.__stdout__.flush()


def serve(request: dict) -> dict | None:
    """Run one program; None in the ranks' own processes."""
    folder = Path(tempfile.mkdtemp(prefix="ranks-"))
    launch.prepare(folder)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    processes = {}
    began = time.monotonic()
    for rank in range(request["ranks"]):
        process = os.fork()
        if process == 0:
            become(rank, request, folder, port)
            return None
        processes[process] = rank
    status = waited(processes, began + request.get("most", MOST_S))
    took = time.monotonic() - began
    result = launch.collect(folder, any(status.values()))
    told = checks.run_ranks(result.traces)
    unlike = [difference for trace in result.traces if (difference := retimed_unlike(trace))]
    found = [finding for finding in told if finding.severity != "info"]
    output = {path.name: path.read_text("utf-8", "replace") for path in sorted(folder.glob("*.out"))}
    shutil.rmtree(folder)
    return {
        "findings": [[f.code, f.site.file, f.site.line, f.message] for f in launch.merge(found)],
        "advice": [f.advice for f in launch.merge(found)],
        "remarks": [finding.message for finding in told if finding.code == "imbalance"],
        "status": [status[rank] for rank in range(request["ranks"])],
        "took_s": took,
        "outcome": result.outcome,
        "output": output,
        "retimed_unlike": unlike,
    }


def retimed_unlike(trace: Trace) -> str:
    """How a trace differs from itself, retimed to the GPUs that it is of; empty where it does not."""
    if not trace.facts.get("gpus"):  # nothing happened there
        return ""
    trace = trace.canonical()  # as it is saved
    made = retime(trace, gpus_of(trace))
    before, after = list(trace), list(made)
    at = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), None)
    if at is None:
        return "" if len(before) == len(after) else f"{len(before)} rows became {len(after)}"
    return f"row {at} of {len(before)}, rank {trace.facts.get('rank')}: {before[at]} became {after[at]}"


def waited(processes: dict[int, int], until: float) -> dict[int, int]:
    """The exit status of each rank, negative for a signal; those that do not end say where they are, and are killed."""
    found: dict[int, int] = {}
    while len(found) < len(processes):
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            found[processes[process]] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > until:
            for left, rank in processes.items():
                if rank not in found:
                    os.kill(left, signal.SIGUSR2)
                    time.sleep(0.5)
                    os.kill(left, signal.SIGKILL)
            until = float("inf")
        else:
            time.sleep(0.01)
    return found


def become(rank: int, request: dict, folder: Path, port: int) -> None:
    """Be a rank: run the program as Python would, and then end."""
    size = request["ranks"]
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1",
    )  # fmt: skip
    os.environ.update(request.get("environment", {}))
    options = {"gpus": request.get("gpus", f"{max(2, size)}xV100"), "stuck_after": request.get("stuck_after", 60.0)}
    if request.get("no_data"):
        options["no_data"] = True
    if request.get("faults"):
        options["faults"] = request["faults"]
    os.environ.update(launch.environment(options, folder, os.environ))
    out = os.open(folder / f"{rank}.out", os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    faulthandler.register(signal.SIGUSR2)
    torch.set_num_threads(1)
    if not request.get("plain"):
        install_from_environment("torch")
    os.chdir(Path(request["program"]).parent)
    sys.argv = [request["program"]]
    try:
        runpy.run_path(request["program"], run_name="__main__")
    except Exception as error:  # noqa: BLE001  as Python itself does with what nobody caught
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        end(1)
    except SystemExit as error:
        end(error.code if isinstance(error.code, int) else int(error.code is not None))


def end(code: int) -> NoReturn:
    """End with an exit code, after what Python does at its end but for taking PyTorch apart, which takes a second."""
    import atexit

    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
