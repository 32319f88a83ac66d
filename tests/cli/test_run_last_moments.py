"""The last moments of a program: exit handlers that use a GPU, and daemon threads that are still at work."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Run

pytestmark = pytest.mark.long

WORK = {
    "operators": "torch.ones(3, device='cuda') * 2",
    "backward": "torch.ones(3, device='cuda', requires_grad=True).exp().sum().backward()",
    "synchronization": "torch.cuda.synchronize()",
    "stream": "torch.cuda.current_stream().query()",
    "copy": "torch.ones(1000).to('cuda').cpu()",
    "host": "torch.ones(100) @ torch.ones(100)",
    "handled": "print('', end='') if torch.cuda.is_available() else print('no GPU')",
}
ABORTED = 134
"""How PyTorch alone ends such a program on the CPU, 16 times of 16: Python stops a thread inside of its C++ frames.
Here that is seldom: a thread has to ask for Python's lock in the last moment."""
THREAD = """import threading, torch
def work():
    while True:
        {}
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
print(torch.ones(1000, device="cuda").sum().item())
"""


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_a_daemon_thread_at_work_stops_silently(windtunnel: Run, tmp_path: Path, work: str) -> None:
    (tmp_path / "program.py").write_text(THREAD.format(work))
    ran = windtunnel("run", "--gpus", "A100", "program.py")
    assert ran.stdout == "1000.0\n"
    assert "Traceback" not in ran.stderr
    if ran.returncode != ABORTED:
        assert ran.returncode == 0
        assert ran.stderr.startswith("verdict EMULATED")
        assert "INCOMPLETE" not in ran.stderr


HANDLER = "def last(): print((torch.ones(3, device='cuda') * 2).sum().item(), torch.cuda.max_memory_allocated())\n"


@pytest.mark.parametrize(
    "program",
    [
        f"import atexit, torch\n{HANDLER}atexit.register(last)",
        f"import atexit\n{HANDLER}atexit.register(last)\nimport torch",
        f"import atexit\n{HANDLER}atexit.register(last)\nimport torch\ntorch.zeros(1, device='cuda').cpu()",
        f"import weakref\n{HANDLER}class Model: pass\nmodel = Model()\nweakref.finalize(model, last)\nimport torch",
    ],
)
def test_an_exit_handler_uses_a_gpu(windtunnel: Run, tmp_path: Path, program: str) -> None:
    (tmp_path / "program.py").write_text(program)
    ran = windtunnel("run", "--gpus", "A100", "program.py")
    assert (ran.returncode, ran.stdout) == (0, "6.0 1024\n")
    assert ran.stderr.startswith("verdict EMULATED on 1 x NVIDIA A100-SXM4-40GB: too short to judge\nwhy     ")


def test_pytorch_is_first_imported_by_an_exit_handler(windtunnel: Run, tmp_path: Path) -> None:
    """PyTorch's own finalizers complain there, also without GPUs."""
    program = "import atexit\ndef last():\n    import torch\n    print(torch.ones(3, device='cuda').sum().item())\n"
    (tmp_path / "program.py").write_text(program + "atexit.register(last)")
    ran = windtunnel("run", "--gpus", "A100", "program.py")
    assert (ran.returncode, ran.stdout) == (0, "3.0\n")
    assert "INCOMPLETE" not in ran.stderr
    assert "A100-SXM4-40GB: too short to judge" in ran.stderr
