"""`windtunnel smi`, and `nvidia-smi` under `windtunnel run`."""

import sys

import pytest

HOLDS = """
import subprocess, torch
x = torch.ones(1 << 20, device="cuda:1")
subprocess.run(["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"], check=True)
subprocess.run(["nvidia-smi", "--query-compute-apps=process_name,used_memory", "--format=csv,noheader"], check=True)
"""


def test_the_table_shows_the_emulated_gpus(windtunnel) -> None:
    done = windtunnel("smi", "--gpus", "4xV100")
    assert done.returncode == 0
    assert "NVIDIA-SMI 460.106.00   Driver Version: 460.106.00   CUDA Version: 11.2" in done.stdout
    assert done.stdout.count("Tesla V100-SXM2...") == 4
    assert "No running processes found" in done.stdout


def test_lists_and_queries(windtunnel) -> None:
    assert [line[:19] for line in windtunnel("smi", "-L").stdout.splitlines()] == [
        "GPU 0: Tesla V100-S",
        "GPU 1: Tesla V100-S",
    ]
    query = ("--query-gpu=index,memory.total", "--format=csv,noheader")
    assert windtunnel("smi", "--gpus=V100", *query).stdout == "0, 16160 MiB\n"
    assert windtunnel("smi", "-i", "1", *query).stdout == "1, 16160 MiB\n"
    assert windtunnel("smi", "--gpus", "0").returncode == 6


@pytest.mark.long
def test_a_program_sees_its_own_memory_in_nvidia_smi(windtunnel) -> None:  # mission 32
    done = windtunnel("run", "-q", "-c", HOLDS)
    assert done.returncode == 0, done.stderr
    devices, process = done.stdout.splitlines()[:2], done.stdout.splitlines()[2]
    assert devices[0] == "0, 0"
    used = int(devices[1].split(", ")[1])
    assert used > 4
    name, of_process = process.split(", ")
    assert name == sys.executable
    assert int(of_process.removesuffix(" MiB")) == used - 3  # mission 3: the documents' tables


LEAST_DRIVER = {12: 525, 13: 580}
"""NVIDIA's "CUDA Compatibility": the oldest driver for each major version of CUDA."""
VERSIONS = """
import re, subprocess, pynvml, torch
def asked(*arguments):
    return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=True).stdout
pynvml.nvmlInit()
driver = asked("--query-gpu=driver_version", "--format=csv,noheader").splitlines()[0]
cuda = re.search(r"CUDA Version: +([0-9.]+)", asked())[1]
print(torch.version.cuda, cuda, pynvml.nvmlSystemGetCudaDriverVersion(), driver, pynvml.nvmlSystemGetDriverVersion())
"""


@pytest.mark.long
@pytest.mark.parametrize("options", [["--gpus", "H100"], ["--gpus", "H100", "--cuda-version", "12.4"]])
def test_the_driver_is_one_that_the_programs_pytorch_runs_with(windtunnel, options) -> None:
    done = windtunnel("run", "-q", *options, "-c", VERSIONS)
    torch, smi, nvml, *drivers = done.stdout.split()
    major, minor = map(int, torch.split("."))
    assert smi == torch
    assert int(nvml) == 1000 * major + 10 * minor
    assert drivers[0] == drivers[1]
    assert int(drivers[0].split(".")[0]) >= LEAST_DRIVER[major]


BEFORE = """
import ctypes, os, sys, pynvml
pynvml.nvmlInit()
memory = [pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(i)).total for i in range(2)]
os.environ["CUDA_VISIBLE_DEVICES"] = str(memory.index(max(memory)))
import torch
print(torch.cuda.get_device_name())
"""
ALONE = """
from ctypes import *
driver, nvml, count, of_nvml, handle = CDLL("libcuda.so.1"), CDLL("libnvidia-ml.so.1"), c_int(), c_uint(), c_void_p()
name = create_string_buffer(64)
codes = [driver.cuInit(0), driver.cuDeviceGetCount(byref(count)), nvml.nvmlInit_v2()]
codes.append(nvml.nvmlDeviceGetCount_v2(pointer(of_nvml)))
codes += [nvml.nvmlDeviceGetHandleByIndex_v2(1, byref(handle)), nvml.nvmlDeviceGetName(handle, name, 64)]
print(codes, count.value, of_nvml.value, name.value)
"""


@pytest.mark.long
def test_the_drivers_libraries_answer_before_a_framework_is_imported(windtunnel) -> None:
    done = windtunnel("run", "-q", "--gpus", "V100,A100", "-c", BEFORE)
    assert (done.stdout, done.stderr) == ("NVIDIA A100-SXM4-40GB\n", "")
    done = windtunnel("run", "-q", "--gpus", "V100,A100", "-c", ALONE)
    assert (done.stdout, done.stderr) == ("[0, 0, 0, 0, 0, 0] 2 2 b'NVIDIA A100-SXM4-40GB'\n", "")


@pytest.mark.long
def test_nvidia_smi_shows_the_gpus_of_the_run(windtunnel) -> None:
    done = windtunnel("run", "-q", "--gpus", "3xA100", "--no-python", "nvidia-smi", "-L")
    assert done.stdout.count("NVIDIA A100") == 3
