"""Looking at the machine: doctor, nvidia-smi (items 1 to 5)."""

import functools
import re
import subprocess
import sys

import pytest

HEADER = [
    "NVIDIA-SMI 460.106.00 Driver Version: 460.106.00 CUDA Version: 11.2",
    "GPU Name Persistence-M| Bus-Id Disp.A | Volatile Uncorr. ECC",
    "Fan Temp Perf Pwr:Usage/Cap| Memory-Usage | GPU-Util Compute M.",
]
CARD = re.compile(r"\| *(\d) +Tesla V100-SXM2\.\.\. +Off +\| +(00000000:00:\w\w\.0) Off \| +0 \|")
STATE = re.compile(r"\| *N/A +\d+C +P0 +(\d+)W / 300W \| +(\d+)MiB / 16160MiB \| +(\d+)% +Default \|")
PROCESS = re.compile(r"\| +(\d) +N/A +N/A +\d+ +C +(\S.*\S) +(\d+)MiB \|")


@functools.cache
def windtunnel(*arguments):
    """What a windtunnel command printed: it is run once."""
    command = [sys.executable, "-m", "windtunnel", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


# mission 1
def test_doctor_says_what_is_missing():
    done = windtunnel("doctor")
    assert "driver" in done.stdout.lower()
    assert "PyTorch" in done.stdout


# mission 2
def test_nvidia_smi_table_of_four_cards():
    table = windtunnel("smi", "--gpus", "4xV100").stdout
    lines = [" ".join(line.strip("| ").split()) for line in table.splitlines()]
    assert [line for line in HEADER if line not in lines] == []
    box = [line for line in table.splitlines() if line[:1] in "|+"]
    assert {len(line) for line in box} == {79}
    assert CARD.findall(table) == [(str(i), f"00000000:00:1{letter}.0") for i, letter in enumerate("BCDE")]
    assert [(memory, use) for _, memory, use in STATE.findall(table)] == [("0", "0")] * 4
    assert "No running processes found" in table


# mission 3, 4
@pytest.mark.long
@pytest.mark.parametrize("visible", ["0,2", "1,3"])
def test_nvidia_smi_inside_a_program(visible, run):
    done = run(
        "import subprocess, torch\n"
        "x = [torch.ones(2**28, dtype=torch.uint8, device=f'cuda:{i}') for i in range(torch.cuda.device_count())]\n"
        "print(torch.cuda.device_count())\n"
        "print(subprocess.run(['nvidia-smi'], capture_output=True, text=True, check=True).stdout)\n",
        "-q",
        "--gpus",
        "4xV100",
        "--cuda-version",
        "11.2",
        CUDA_VISIBLE_DEVICES=visible,
    )
    assert done.stdout.startswith("2\n"), done.stderr
    used = {str(index): int(state[1]) for index, state in enumerate(STATE.findall(done.stdout))}
    processes = {device: int(memory) for device, _, memory in PROCESS.findall(done.stdout)}
    assert sorted(processes) == visible.split(",")
    for device, memory in used.items():
        if device in processes:
            assert memory - processes[device] == 3
            assert memory > 256
        else:
            assert memory == 0


# mission 5
def test_doctor_names_no_package_that_does_not_exist():
    text = windtunnel("doctor").stdout
    assert "pip install" in text
    assert not re.search(r"torch-cu\d|mxnet-cu100", text)
