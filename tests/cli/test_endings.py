"""However a program's processes end, what they did on GPUs is in the report, or the run says that it is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
"""Each starts programs of its own."""

ENDINGS = """
import os, signal, sys, torch

def race():
    x = torch.ones(9, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        x.add_(1)

def leave():
    race()
    os._exit(0)

def become():
    torch.ones(3, device="cuda").sum().item()
    try:
        os.execv("/nowhere/at/all", ["x"])
    except FileNotFoundError:
        torch.ones(3, device="cuda").sum().item()
    os.execlp(sys.executable, sys.executable, "-c", "import torch; torch.ones(3, device='cuda').sum().tolist()")

def killed():
    torch.ones(5, device="cuda").sum().item()
    os.kill(os.getpid(), signal.SIGKILL)

def unused():
    os._exit(0)

def terminated():
    os.kill(os.getpid(), signal.SIGTERM)

for child in [globals()[name] for name in sys.argv[1:]]:
    if not os.fork():
        child()
    os.wait()
torch.ones(4, device="cuda").sum().item()
"""


def sites(report: Path) -> list[tuple[str, int, int]]:
    """The findings of a report: code, line, how often."""
    return [(one["code"], one["line"], one["count"]) for one in json.loads(report.read_text())["findings"]]


def test_what_ends_past_python_is_recorded_once_and_what_is_killed_is_no_evidence(windtunnel, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ENDINGS)
    children = ["leave", "become", "unused", "terminated", "killed"]
    done = windtunnel("run", "--report", "r.json", "--fail-on", "out-of-memory", "program.py", *children)
    lines = done.stderr.splitlines()
    assert done.returncode == 67, done.stderr
    assert lines[0] == "windtunnel: 5 processes used GPUs; the report is of all of them"  # two are those of `become`
    assert "INCOMPLETE records" in lines[1]
    assert sum("was killed, or ended past Python" in line for line in lines) == 1
    assert lines[-1].endswith(", the last of program.py:22")
    assert sorted(sites(tmp_path / "r.json")) == [
        ("host-sync", 1, 1),
        ("host-sync", 14, 1),
        ("host-sync", 18, 1),
        ("host-sync", 22, 1),
        ("host-sync", 35, 1),
        ("unsynchronized-access", 7, 1),
    ]


LIMITED = """
import os, resource, sys, torch
sys.dont_write_bytecode = True  # what is imported under the limit would be cut short for every later process
x = torch.ones(3, device="cuda")
limit = getattr(resource, sys.argv[1])
resource.setrlimit(limit, (5000, 5000) if sys.argv[1] == "RLIMIT_FSIZE" else (30, 30))
while sys.argv[1] == "RLIMIT_NOFILE":
    try:
        os.open(os.devnull, os.O_RDONLY)
    except OSError:
        break
for _ in range(2000):
    x.add_(1)
x.sum().item()
"""


@pytest.mark.parametrize(
    ("limit", "reason"), [("RLIMIT_FSIZE", "File too large"), ("RLIMIT_NOFILE", "Too many open files")]
)
def test_a_process_that_may_not_write_on_says_why(windtunnel, tmp_path: Path, limit: str, reason: str) -> None:
    (tmp_path / "program.py").write_text(LIMITED)
    done = windtunnel("run", "--fail-on", "error", "program.py", limit)
    assert done.returncode == 67, done.stderr
    assert f"a process that used a GPU could not write all its records: {reason}" in " ".join(done.stderr.split())
    assert f"could not write all its records ({reason}): what is known of it ends with" in done.stderr
    assert "killed" not in done.stderr


GONE = "import os, shutil; shutil.rmtree(os.environ['WINDTUNNEL_RUN_DIR'])"


@pytest.mark.parametrize(("asked", "code"), [(("--fail-on", "error"), 67), (("--report", "r.json"), 67), ((), 0)])
def test_a_folder_that_is_gone_is_no_evidence(windtunnel, asked: tuple[str, ...], code: int) -> None:
    done = windtunnel("run", *asked, "-c", GONE)
    assert done.returncode == code
    (line,) = done.stderr.splitlines()
    assert line.startswith("windtunnel: the run's folder for temporary files was removed while the program ran")


SPOILT = """
import os, pathlib, torch
torch.ones(3, device="cuda").sum().item()
folder = pathlib.Path(os.environ["WINDTUNNEL_RUN_DIR"])
(own,) = folder.glob("*.journal")
for suffix in ("journal", "live", "calls", "outcome", "shadow", "begun"):
    (folder / f"1.{suffix}").write_bytes(b"")
    (folder / f"x.{suffix}").write_bytes(bytes([255]) * 999)
    (folder / f"2.{suffix}").mkdir()
    os.mkfifo(folder / f"3.{suffix}")
    (folder / f"4.{suffix}").symlink_to("/nowhere/at/all")
(folder / "y.journal").write_bytes(own.read_bytes()[:200])
os.system("nvidia-smi > smi.txt")
"""


def test_what_the_program_spoils_in_the_folder_costs_only_that(windtunnel, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SPOILT)
    done = windtunnel("run", "--report", "r.json", "program.py")
    assert "Traceback" not in done.stderr
    assert ("host-sync", 3, 1) in sites(tmp_path / "r.json")
    assert sum("the records of a process cannot be read" in line for line in done.stderr.splitlines()) >= 4
    assert done.returncode == 67  # a report was asked for, and it is of incomplete records
    assert "python" in (tmp_path / "smi.txt").read_text()


HOWS = """
import ctypes, os, signal, sys
import torch
from torch import multiprocessing


def race(how):
    x = torch.ones(9, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        x.add_(1)
    torch.cuda.synchronize()
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "crash":
        ctypes.string_at(0)
    if how == "abort":
        os.abort()
    if how == "raise":
        raise ValueError("ended")
    if how == "leave":
        ctypes.CDLL(None)._exit(3)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        race(how)


def rank():
    from torch import distributed
    distributed.init_process_group("nccl")
    if distributed.get_rank() == 1:
        race(how)
    distributed.destroy_process_group()


where, how = sys.argv[1:]
if __name__ == "__main__":
    if where == "program":
        race(how)
    if where == "child":
        process = multiprocessing.get_context("spawn").Process(target=race, args=(how,))
        process.start()
        process.join()
    if where == "worker":
        list(torch.utils.data.DataLoader(Rows(), num_workers=1, multiprocessing_context="spawn"))
    if where == "rank":
        rank()
"""

NOT_SEEN = ("kill", "crash", "leave")
"""The ends that no Python code sees."""


@pytest.mark.parametrize(
    ("where", "how"),
    [
        *(("program", how) for how in ("exit", "kill", "crash", "abort", "raise", "leave")),
        *(("child", how) for how in ("exit", "crash")),
        *((where, how) for where in ("worker", "rank") for how in ("exit", "kill")),
    ],
)
def test_however_a_process_ends_its_race_is_in_the_report(windtunnel, tmp_path: Path, where: str, how: str) -> None:
    (tmp_path / "program.py").write_text(HOWS)
    ranks = ("--nproc-per-node", "2", "--gpus", "2") if where == "rank" else ()
    done = windtunnel("run", *ranks, "--report", "r.json", "program.py", where, how)
    assert ("unsynchronized-access", 10, 1) in sites(tmp_path / "r.json"), done.stderr
    assert ("INCOMPLETE records" in done.stderr) == (how in NOT_SEEN)


FAMILY = """
import pathlib, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
children = [subprocess.Popen(sleep), subprocess.Popen(sleep, env={}), subprocess.Popen(sleep, start_new_session=True)]
pathlib.Path("started.part").write_text(" ".join(str(child.pid) for child in children))
pathlib.Path("started.part").rename("started")
time.sleep(60)
"""


def alive(process: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def until(what, seconds: float = 30) -> bool:
    """Wait until something is true; whether it came to be."""
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(what())


def test_a_kill_of_the_run_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-m", "windtunnel", "run", "-c", FAMILY]
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "TMPDIR": str(folder)}) as process:
        assert until((tmp_path / "started").exists)
        family = [int(number) for number in (tmp_path / "started").read_text().split()]
        assert all(map(alive, family))
        process.send_signal(signal.SIGKILL)
    assert until(lambda: not any(map(alive, family)) and not list(folder.iterdir()))


def test_what_a_killed_program_leaves_running_is_named(windtunnel) -> None:
    """https://github.com/GaTech-RL2/EgoVerse/pull/682: workers that outlived their rank kept seven of eight GPUs."""
    text = (
        "import os, subprocess, sys\nto = dict.fromkeys(['stdout', 'stderr'], subprocess.DEVNULL)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], **to)\n"
        "print(child.pid, flush=True)\nos.kill(os.getpid(), 9)"
    )
    done = windtunnel("run", "-c", text)
    child = int(done.stdout)
    assert alive(child)
    os.kill(child, signal.SIGKILL)
    assert f"still running: {child}; on real GPUs they would keep the memory that they use" in done.stderr


def test_a_program_inherits_the_descriptors_that_it_was_given(tmp_path: Path) -> None:
    """`prog.py <(...)`, `5< file`, and a script that is a named pipe, as under Python itself."""
    script = "import os, sys\nprint(os.read(int(sys.argv[1]), 99), sorted(map(int, os.listdir('/proc/self/fd'))))"
    outputs = []
    for start in ([sys.executable], [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "1"]):
        pipe = tmp_path / f"script-{len(outputs)}"
        os.mkfifo(pipe)
        reading, writing = os.pipe()
        os.write(writing, b"lr: 0.1")
        child = subprocess.Popen(
            [*start, str(pipe), str(reading)], pass_fds=[reading], stdout=subprocess.PIPE, text=True
        )
        pipe.write_text(script)
        outputs.append(child.communicate(timeout=120)[0])
        assert child.returncode == 0
        os.close(reading)
        os.close(writing)
    assert "lr: 0.1" in outputs[0]
    assert outputs[1] == outputs[0].replace("script-0", "script-1"), "the same descriptors, none of the run's own"
