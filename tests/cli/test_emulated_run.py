"""`windtunnel run` with programs that use GPUs: reports, gates, children, several ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.schemas import conforms
from windtunnel.trace.trace import Trace

pytestmark = pytest.mark.long
"""Each starts programs of its own."""

SYNCS = """
import torch
x = torch.ones(3, device="cuda")
for _ in range(3):
    x.sum().item()
"""


def test_the_report_is_on_stderr_and_in_files(windtunnel, tmp_path: Path) -> None:
    done = windtunnel("run", "--gpus", "2xA100", "--report", "out/a.json", "--trace", "a.trace", "-c", SYNCS)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines()[0].startswith("verdict EMULATED on 2 x NVIDIA A100")
    assert "(modelled)" in done.stderr
    assert len(done.stderr.splitlines()) <= 15
    assert "EMULATED: times are modelled" in windtunnel("report", "a.trace", "-v").stdout
    report = json.loads((tmp_path / "out" / "a.json").read_text())
    assert [(finding["code"], finding["count"]) for finding in report["findings"]] == [("host-sync", 3)]
    assert conforms("report", report)
    again = windtunnel("report", "a.trace", "--json")
    assert json.loads(again.stdout) == report


def test_the_same_program_gives_the_same_trace(windtunnel, tmp_path: Path) -> None:
    for name in ("a.trace", "b.trace"):
        assert windtunnel("run", "-q", "--trace", name, "-c", SYNCS).returncode == 0
    assert (tmp_path / "a.trace").read_bytes() == (tmp_path / "b.trace").read_bytes()


def test_quiet_says_nothing(windtunnel) -> None:
    done = windtunnel("run", "-q", "-c", SYNCS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("fault", "missed"), [("oom:step=99", True), ("die:rank=1", True), ("nan", False)])
def test_a_fault_that_never_happened_is_named(windtunnel, fault: str, missed: bool) -> None:
    done = windtunnel("run", "--fault", fault, "-c", SYNCS)
    assert done.returncode == 0
    assert (f"windtunnel: the fault '{fault}' never happened" in done.stderr) == missed


@pytest.mark.parametrize(("gate", "code"), [("host-sync=2", 64), ("host-sync=3", 0), ("error,out-of-memory", 0)])
def test_a_gate_fails_the_run(windtunnel, gate: str, code: int) -> None:
    done = windtunnel("run", "-q", "--fail-on", gate, "-c", SYNCS)
    assert done.returncode == code
    assert done.stderr == ("windtunnel: failed on host-sync: 3 found, 2 allowed (<string>:5)\n" if code else "")


def test_a_gate_of_the_project_gives_way_to_the_environment_and_that_to_the_command_line(windtunnel, tmp_path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.windtunnel]\nquiet = true\nfail-on = "host-sync"\n')
    assert windtunnel("run", "-c", SYNCS).returncode == 64
    assert windtunnel("run", "-c", SYNCS, env={"WINDTUNNEL_FAIL_ON": "error"}).returncode == 0
    done = windtunnel("run", "--fail-on", "info=1", "-c", SYNCS, env={"WINDTUNNEL_FAIL_ON": "error"})
    assert done.returncode == 64
    assert done.stderr == "windtunnel: failed on info: 3 found, 1 allowed (<string>:5)\n"


def test_the_programs_own_failure_wins_over_a_gate_and_is_reported(windtunnel) -> None:
    done = windtunnel("run", "--fail-on", "host-sync", "-c", SYNCS + "raise SystemExit(9)")
    assert done.returncode == 9
    assert "the program failed (exit code 9)" in done.stderr.splitlines()[0]


def test_what_does_not_fit_gives_65(windtunnel) -> None:
    code = "import torch; kept = [torch.empty(1 << 28, device='cuda') for _ in range(17)]"
    done = windtunnel("run", "-q", "-c", code)
    assert done.returncode == 65
    assert done.stderr.splitlines()[-1].startswith("torch.OutOfMemoryError: CUDA out of memory.")


def test_what_must_be_refused_gives_66(windtunnel) -> None:
    code = "import torch; from windtunnel.errors import UnsupportedError; raise UnsupportedError('no kernel')"
    assert windtunnel("run", "-q", "-c", code).returncode == 66


def test_what_this_machine_cannot_hold_gives_66(windtunnel) -> None:
    code = "import torch; kept = torch.ones(1 << 26, device='cuda')"
    done = windtunnel("run", "-q", "--host-memory-limit", "64MiB", "-c", code)
    assert done.returncode == 66
    assert done.stderr.splitlines()[-1].startswith("windtunnel.errors.HostMemoryError: <string>:1 makes 256 MiB")


def test_an_emulation_that_cannot_begin_is_one_sentence(windtunnel) -> None:
    done = windtunnel("run", "-q", "-c", "import windtunnel; windtunnel.emulate().__enter__()", env={})
    assert done.returncode == 1
    assert "an emulation is already active in this process" in done.stderr.splitlines()[-1]


SECOND_INTERRUPT = """
import os, signal, torch
from windtunnel import session
running = session.running()
stock = running.end
def end():
    os.kill(os.getpid(), signal.SIGINT)
    stock()
running.end = end
torch.ones(3, device="cuda").sum().item()
raise KeyboardInterrupt
"""


def test_a_second_ctrl_c_loses_nothing(windtunnel, tmp_path: Path) -> None:
    done = windtunnel("run", "--report", "a.json", "-c", SECOND_INTERRUPT)
    assert done.returncode == 130
    assert ", interrupted" in done.stderr
    assert json.loads((tmp_path / "a.json").read_text())["findings"]


MIXED = """
import torch

def mixed():
    return torch.ones(2, device="cuda:0") + torch.ones(2, device="cuda:1")

mixed()
"""


def test_tracebacks_show_the_program_alone(windtunnel, tmp_path: Path) -> None:
    (tmp_path / "mixed.py").write_text(MIXED)
    lines = windtunnel("run", "-q", "mixed.py").stderr.splitlines()
    assert [line.split(",")[1] for line in lines if line.startswith("  File ")] == [" line 7", " line 5"]
    assert lines[-1].startswith("RuntimeError: Expected all tensors to be on the same device")


def test_visible_devices_are_honoured(windtunnel) -> None:
    code = "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"
    assert windtunnel("run", "-q", "-c", code, env={"CUDA_VISIBLE_DEVICES": ""}).stdout == "False 0\n"
    assert windtunnel("run", "-q", "-c", code, env={"CUDA_VISIBLE_DEVICES": "1"}).stdout == "True 1\n"
    assert windtunnel("run", "-q", "--gpus", "0", "-c", code).stdout == "False 0\n"


WORKERS = """
import sys, torch, multiprocessing

def work(index):
    torch.ones(2, device=f"cuda:{index}").sum().item()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    workers = [context.Process(target=work, args=(index,)) for index in range(2)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    print([worker.exitcode for worker in workers])
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_processes_of_multiprocessing_are_emulated_and_seen(windtunnel, tmp_path: Path, method: str) -> None:
    (tmp_path / "workers.py").write_text(WORKERS)
    done = windtunnel("run", "workers.py", method)
    assert done.stdout == "[0, 0]\n", done.stderr
    assert "2 processes used GPUs" in done.stderr


RANK = """
import os, torch
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
torch.ones(4, device="cuda").sum().item()
open(f"rank{rank}", "w").write(" ".join([os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"]]))
"""


def test_ranks_are_started_by_torchruns_agent(windtunnel, tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    done = windtunnel("run", "--nproc_per_node", "2", "--report", "r.json", "--trace", "r.trace", "rank.py")
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / name).read_text().split()[0] for name in ("rank0", "rank1")] == ["2", "2"]
    devices = json.loads((tmp_path / "r.json").read_text())["devices"]
    assert [device["kernels"] > 0 for device in devices] == [True, True]
    assert [Trace.load(tmp_path / name).facts["rank"] for name in ("r.trace", "r.rank1.trace")] == [0, 1]


def test_a_program_that_uses_no_gpu_is_told_so(windtunnel) -> None:
    done = windtunnel("run", "-c", "print(1)")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr.startswith("windtunnel: no report: the program did nothing on a GPU")


@pytest.mark.parametrize("end", [subprocess.PIPE, None], ids=["broken", "closed"])
def test_a_report_that_nobody_reads_leaves_the_exit_code_alone(tmp_path: Path, end: int | None) -> None:
    command = [sys.executable, "-m", "windtunnel", "run", "-c", SYNCS + "raise SystemExit(9)"]
    if end is None:
        command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    with subprocess.Popen(command, cwd=tmp_path, stderr=end) as child:
        if child.stderr is not None:
            child.stderr.close()
    assert child.returncode == 9


def test_a_python_that_cannot_be_reached_is_named_as_a_possible_reason(windtunnel) -> None:
    done = windtunnel("run", "--no-python", sys.executable, "-E", "-c", "import torch")
    assert done.stderr.endswith("used a device; Pythons that are started with -E, -I or -S are not reached)\n")


@pytest.mark.parametrize("pool", ["nullcontext()", "torch.cuda.use_mem_pool(torch.cuda.MemPool())"])
def test_a_program_that_only_takes_memory_used_a_gpu(windtunnel, pool: str) -> None:
    program = f"""import torch
from contextlib import nullcontext
with {pool}:
    held = torch.empty(1 << 20, device='cuda')
"""
    ran = windtunnel("run", "--gpus", "H100", "-c", program)
    assert "1 x NVIDIA H100 80GB HBM3: only memory was taken\n" in ran.stderr
    assert "4.00 MiB at its peak on cuda:0" in ran.stderr


def test_the_error_of_a_program_that_only_takes_memory_is_noted(windtunnel, tmp_path: Path) -> None:
    program = "import torch\nheld = torch.empty(9, device='cuda')\nraise ValueError('of the program')\n"
    saved = tmp_path / "run.trace"
    assert windtunnel("run", "--gpus", "H100", "--trace", str(saved), "-c", program).returncode == 1
    assert [note.code for note in Trace.load(saved).notes] == ["uncaught-error"]
