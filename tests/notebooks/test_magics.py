"""%gpus, %%rehearse, start() and stop() in kernels as Jupyter starts them."""

import glob
import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
import notebooks

pytestmark = pytest.mark.long
"""Each starts a kernel."""

LOOP = "x = torch.randn(1024, 1024, device='cuda')\nfor _ in range(30):\n    y = (x @ x).sum().item()"
LEFT = "import os, glob, tempfile; print([name for name in os.environ if name.startswith('WINDTUNNEL_')])"


def test_the_notebook_of_the_examples_works(tmp_path):
    """Its cells in turn: devices, tensors that do not meet, copies, and the finding of the last one, with its line."""
    path = Path(__file__).parents[2] / "examples" / "use_gpus.ipynb"
    sources = ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    environment = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    cells = notebooks.execute(tmp_path, *sources, PATH=environment)
    shown = [notebooks.printed(cell) for cell in cells]
    assert "Tesla V100" in shown[1]
    assert shown[2] == "2\n"
    assert shown[3] == "(device(type='cuda', index=0), device(type='cpu'))\n"
    assert "Expected all tensors to be on the same device" in shown[5]
    assert "True" in shown[7]
    assert re.search(r"host-sync.*Cell In\[10\], line 5", shown[9], re.DOTALL)


def test_gpus_come_and_go(tmp_path):
    cells = notebooks.execute(
        tmp_path,
        "%load_ext windtunnel",
        "%gpus 2xV100",
        "import torch\ntorch.cuda.device_count(), torch.cuda.get_device_name(1)",
        LOOP,
        "!nvidia-smi --query-gpu=name,memory.used --format=csv,noheader",
        '!python -c "import torch; print(torch.cuda.get_device_name(1))"',
        "%gpus",
        "%gpus H100\nprint(torch.cuda.device_count(), torch.cuda.get_device_name())\nz = torch.ones(3).cuda()",
        "%gpus off --move",
        "z.device, z.tolist(), torch.cuda.is_available()",
        LEFT,
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    )
    (_, _, seen, _, smi, child, report, other, off, moved, left) = map(notebooks.printed, cells)
    assert seen == "(2, 'Tesla V100-SXM2-16GB')\n"
    first, second = smi.splitlines()
    assert int(first.split(", ")[1].split()[0]) > 300
    assert second == "Tesla V100-SXM2-16GB, 0 MiB"
    assert child.splitlines() == ["Tesla V100-SXM2-16GB"]
    assert "host-sync" in report
    assert "Cell In[4], line 3" in report
    page = notebooks.html(cells[6])
    assert "Cell In[4], line 3" in page
    assert "→   3     y = (x @ x).sum().item()" in page
    assert "<script" not in page
    assert len(page) < 10_000
    assert "1 NVIDIA H100 80GB HBM3" in other
    assert "EMULATED on 1 x NVIDIA H100" in off
    assert moved == "(device(type='cpu'), [1.0, 1.0, 1.0], False)\n"
    assert left == "[]\n"


def test_a_tensor_that_outlives_its_gpu_says_so(tmp_path):
    *_, tensor, parameter, gradient, cpu, other = notebooks.execute(
        tmp_path,
        "import torch, windtunnel\nsession = windtunnel.start('V100')",
        "x, y = torch.ones(3, device='cuda'), torch.ones(3)",
        "net = torch.nn.Linear(3, 1).cuda()\nnet(x).sum().backward()",
        "windtunnel.stop()",
        "x + 1",
        "net(y)",
        "net.zero_grad()",
        "y + 1",
        "with windtunnel.emulate('V100'):\n    x.cuda()",
        allow_errors=True,
    )
    for cell in (tensor, parameter, gradient, other):
        name, text, _ = notebooks.error(cell)
        assert name == "EmulationEndedError"
        assert "lived on an emulated GPU" in text
    assert notebooks.printed(cpu) == "tensor([2., 2., 2.])\n"


def test_rehearse_reports_on_its_cell_alone(tmp_path):
    own, error, _, shared, refused, _ = notebooks.execute(
        tmp_path,
        "%load_ext windtunnel",
        "import torch",
        f"%%rehearse A100\n{LOOP}\nx.shape",
        "%%rehearse\n1 / 0",
        "%gpus V100",
        f"%%rehearse\n{LOOP}",
        "%%rehearse A100\n1",
        "%gpus off",
        allow_errors=True,
    )[2:]
    text = notebooks.printed(own)
    assert text.startswith("torch.Size([1024, 1024])\nverdict EMULATED on 1 x NVIDIA A100")
    assert "Cell In[3], line 4" in text  # its second line, below the magic's
    name, _, traceback = notebooks.error(error)
    assert (name, traceback.count("ZeroDivisionError: ")) == ("ZeroDivisionError", 1)
    assert "Cell In[6], line 4" in notebooks.printed(shared)
    assert notebooks.error(refused)[0] == "UsageError"


def test_the_page_in_the_documentation_does_what_it_says(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "notebooks.md").read_text(encoding="utf-8")
    begin, mistake = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    _, _, report, _, _ = notebooks.execute(tmp_path, *begin.splitlines(), mistake, "%gpus off", program)
    (place,) = re.findall(r"`(Cell In\[\d+\], line \d+)`: each", page)
    assert place in notebooks.printed(report)


def test_mistakes_are_one_sentence(tmp_path):
    cells = notebooks.execute(
        tmp_path,
        "%load_ext windtunnel",
        "%gpus 2xFOO",
        "%gpus",
        "%gpus off",
        "%gpus V100 --nodata",
        "%gpus V100\n%gpus H100 --seed x",
        "import windtunnel\nwindtunnel.start('V100')",
        "%gpus off",
        "%unload_ext windtunnel\n%load_ext windtunnel",
        allow_errors=True,
    )
    for cell in cells[1:7]:
        assert notebooks.error(cell)[0] in ("UsageError", "UnknownGpuError", "InstallError"), notebooks.error(cell)
    assert [notebooks.error(cell) for cell in cells[7:]] == [None, None]


# A kernel that is killed, as "Restart" may do it, leaves neither its folder nor the programs that it started.
def test_a_killed_kernel_leaves_nothing(tmp_path):
    client = notebooks.client(
        tmp_path,
        "%load_ext windtunnel\n%gpus V100\nimport torch; x = torch.ones(3, device='cuda')",
        "import os, subprocess\nfolder = os.environ['WINDTUNNEL_RUN_DIR']\n"
        "child = subprocess.Popen(['sleep', '600'])\nprint(os.getpid(), child.pid, folder)",
    )
    with client.setup_kernel():
        for index, cell in enumerate(client.nb.cells):
            client.execute_cell(cell, index)
        kernel, child, folder = notebooks.printed(client.nb.cells[1]).split()
        assert Path(folder).is_dir()
        os.kill(int(kernel), signal.SIGKILL)
        until = time.monotonic() + 30
        while time.monotonic() < until and (Path(folder).exists() or Path(f"/proc/{child}").exists()):
            time.sleep(0.05)
    assert not Path(folder).exists()
    assert not glob.glob(f"{tempfile.gettempdir()}/{Path(folder).name}*")
    assert not Path(f"/proc/{child}/exe").exists()


def test_a_finding_has_its_cell_and_line_always(tmp_path):
    """Under start() without the magics, below magics of cells and lines, in functions, and where `exec` runs text."""
    started = (
        "import torch, windtunnel\nsession = windtunnel.start('V100')",
        LOOP,
        "print(session.findings()[0].site)",
    )
    assert "Cell In[2], line 3" in notebooks.printed(notebooks.execute(tmp_path, *started)[2])
    cells = {
        "%%time\n" + LOOP: 4,
        "%%timeit -n1 -r1\n" + LOOP: 4,
        "%%capture\n" + LOOP: 4,
        "%%prun -q\n" + LOOP: 4,
        "1\n%time torch.ones(3, device='cuda').sum().item()": 2,
        f"2\nexec('''{LOOP}''')": 2,
        "def f():\n    " + LOOP.replace("\n", "\n    "): 4,
    }
    show = "%gpus"
    made = notebooks.execute(tmp_path, "import torch\n%load_ext windtunnel\n%gpus V100", *cells, "%%time\nf()", show)
    shown = notebooks.html(made[-1])
    lines = set(re.findall(r"Cell In\[(\d+)\], line (\d+)", shown))
    assert {(str(number), str(line)) for number, line in enumerate(cells.values(), 2)} == lines
