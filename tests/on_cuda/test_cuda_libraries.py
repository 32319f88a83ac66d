"""Libraries that compile and launch kernels themselves, Numba and cuda-python: their programs, unmodified."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")
pytest.importorskip("cuda.core")
BUILT_IN = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "NumbaCudaFinder"]
"""
"""Leaves `numba.cuda` to Numba itself where numba-cuda would take its place."""
HEAD = """import math
import warnings
import numpy as np
from numba import cuda, float32, vectorize
warnings.simplefilter("ignore")
"""
ARRAYS = """
@cuda.jit
def axpy(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + math.sin(y[i])

@cuda.jit
def totals(x, out):
    shared = cuda.shared.array(128, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i] if i < x.size else 0
    cuda.syncthreads()
    half = 64
    while half:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        cuda.atomic.add(out, 0, shared[0])

x, y = np.arange(1000, dtype=np.float32), np.linspace(0, 9, 1000, dtype=np.float32)
out = cuda.device_array(1000, np.float32)
axpy[8, 128](2.0, cuda.to_device(x), cuda.to_device(y), out)
np.testing.assert_allclose(out.copy_to_host(), 2 * x + np.sin(y), rtol=1e-6)
total = np.zeros(1, np.float32)
totals[8, 128](x, total)
assert total[0] == x.sum()

@vectorize(["float32(float32, float32)"], target="cuda")
def add(a, b):
    return a + b

assert (add(x, y) == x + y).all()

@cuda.jit
def parts(x, whole, fraction, exponent, ones):
    i = cuda.grid(1)
    if i < x.size:
        fraction[i], whole[i] = math.modf(x[i])
        _, exponent[i] = math.frexp(x[i])
        ones[i] = cuda.popc(np.uint32(i))

v = np.array([3.75, -0.5, 1e-310, 0.0, -1024.0])
found = [cuda.device_array(5, kind) for kind in (np.float64, np.float64, np.int32, np.int32)]
parts[1, 32](v, *found)
whole, fraction, exponent, ones = (one.copy_to_host() for one in found)
assert [(a, b) for a, b in zip(fraction, whole)] == [math.modf(one) for one in v]
assert list(exponent) == [math.frexp(one)[1] for one in v]
assert list(ones) == [bin(i).count("1") for i in range(5)]
print("done")
"""
DOUBLE = """
import torch

@cuda.jit
def double(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 2 * x[i]

"""
TENSORS = (
    DOUBLE
    + """x = torch.arange(1000, dtype=torch.float32, device="cuda")
y = torch.zeros_like(x)
double[8, 128](cuda.as_cuda_array(x), y)
assert torch.equal(y, 2 * x)
back = torch.as_tensor(cuda.to_device(np.arange(4.0)), device="cuda")
assert back.device.type == "cuda" and (back * 2).tolist() == [0, 2, 4, 6]
print("done")
"""
)
WITHOUT_DATA = (
    DOUBLE
    + """x = torch.ones(1 << 20, dtype=torch.float32, device="cuda")
y = torch.zeros_like(x)
for _ in range(3):
    double[4096, 256](cuda.as_cuda_array(x), cuda.as_cuda_array(y))
torch.cuda.synchronize()
own = cuda.to_device(np.arange(64.0))
twice = cuda.device_array(64)
double[1, 64](own, twice)
assert (twice.copy_to_host() == 2 * np.arange(64.0)).all()  # memory of Numba's has its values
print("done")
"""
)
FAULTS = """
@cuda.jit
def beyond(x, y):
    i = cuda.grid(1)
    y[i] = x[i + 1]  # beyond

@cuda.jit
def reverse(x, y):
    shared = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    shared[t] = x[t]
    y[t] = shared[63 - t]  # race

x, y = cuda.to_device(np.arange(64, dtype=np.float32)), cuda.device_array(64, np.float32)
beyond[1, 64](x, y)
reverse[1, 64](x, y)
print("done")
"""
GRID = """
@cuda.jit
def rows(m):
    column, grid = cuda.grid(1), cuda.cg.this_grid()
    for row in range(1, m.shape[0]):
        m[row, column] = m[row - 1, m.shape[1] - column - 1] + 1
        grid.sync()

m = np.zeros((16, 1024), np.int32)
m[0] = np.arange(1024)
found = cuda.to_device(m)
rows[32, 32](found)
for row in range(1, 16):
    m[row] = m[row - 1][::-1] + 1
assert (found.copy_to_host() == m).all()
try:
    rows[32 * 5000, 32](found)
except Exception as error:
    assert "COOPERATIVE_LAUNCH_TOO_LARGE" in str(error) or "exceeds the limit" in str(error), error
    print("done")
"""
CORE = """import torch
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

SOURCE = r'''
template <typename T>
__global__ void add(const T *a, const T *b, T *c, size_t n) {
  for (size_t i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += gridDim.x * blockDim.x) c[i] = a[i] + b[i];
}
'''
device = Device()
device.set_current()
stream = device.create_stream()
program = Program(SOURCE, code_type="c++", options=ProgramOptions(std="c++17", arch=f"sm_{device.arch}"))
kernel = program.compile("cubin", name_expressions=("add<float>",)).get_kernel("add<float>")
a, b = torch.rand(5000, device="cuda"), torch.rand(5000, device="cuda")
c = torch.empty_like(a)
device.sync()
launch(stream, LaunchConfig(grid=20, block=256), kernel, a.data_ptr(), b.data_ptr(), c.data_ptr(), 5000)
stream.sync()
assert torch.equal(c, a + b)
print("done")
"""
CORE_LINKED = r"""import warnings
import numpy as np
from cuda.bindings import driver
from cuda.core import Device, EventOptions, LaunchConfig, Linker, LinkerOptions, Program, ProgramOptions, launch

warnings.simplefilter("ignore", RuntimeWarning)  # there is no nvJitLink
WEIGHTS = "__device__ float weight(int i) { return 0.5f * i; }"
BLEND = '''
extern __device__ float weight(int i);
extern "C" __global__ void blend(const float *x, float *y, int n, float by) {
  extern __shared__ float tile[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = i < n ? x[i] : 0.f;
  __syncthreads();
  float left = threadIdx.x ? tile[threadIdx.x - 1] : 0.f;
  if (i < n) y[i] = by * (tile[threadIdx.x] + left) + weight(i % 4);
}
'''
device = Device()
device.set_current()
stream = device.create_stream()
options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}", relocatable_device_code=True)
parts = [Program(text, code_type="c++", options=options).compile("ptx") for text in (WEIGHTS, BLEND)]
kernel = Linker(*parts, options=LinkerOptions(arch=f"sm_{device.arch}")).link("cubin").get_kernel("blend")
n = 1000
x, y = (device.memory_resource.allocate(4 * n, stream=stream) for _ in range(2))
host, back = np.arange(n, dtype=np.float32), np.empty(n, np.float32)
driver.cuMemcpyHtoDAsync(int(x.handle), host.ctypes.data, host.nbytes, stream.handle)
start, end = (device.create_event(EventOptions(timing_enabled=True)) for _ in range(2))
stream.record(start)
launch(stream, LaunchConfig(grid=8, block=128, shmem_size=512), kernel, x, y, np.int32(n), np.float32(2))
stream.record(end)
driver.cuMemcpyDtoHAsync(back.ctypes.data, int(y.handle), back.nbytes, stream.handle)
stream.sync()
left = np.where(np.arange(n) % 128 > 0, host - 1, 0)
np.testing.assert_allclose(back, 2 * (host + left) + 0.5 * (np.arange(n) % 4), rtol=1e-6)
assert 0 < end - start < 1
assert kernel.attributes.max_threads_per_block == 1024
print("done")
"""


def run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program on an emulated H100."""
    (folder / "program.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "windtunnel", "run", "--gpus", "H100", *options, "program.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("head", [HEAD, BUILT_IN + HEAD], ids=["numba-cuda", "numba"])
def test_numba(tmp_path, head):
    done = run(tmp_path, head + ARRAYS)
    assert done.stdout == "done\n", done.stderr


def test_numba_and_tensors(tmp_path):
    done = run(tmp_path, HEAD + TENSORS)
    assert done.stdout == "done\n", done.stderr


def test_numba_without_data(tmp_path):
    found = []
    for options in ((), ("--no-data",)):
        done = run(tmp_path, HEAD + WITHOUT_DATA, *options, "--json")
        assert "done" in done.stdout + done.stderr, done.stderr
        devices = json.loads(done.stdout)["devices"]
        found += [(one["kernels"], one["kernel_ns"], one["peak_allocated_bytes"]) for one in devices]
    assert found[0] == found[1]
    done = run(tmp_path, HEAD + TENSORS, "--no-data")
    assert "a tensor without values cannot be lent by DLPack" in done.stderr


def test_faults_in_numba(tmp_path):
    text = HEAD + FAULTS
    done = run(tmp_path, text, "--json")
    found = {(one["code"], one["line"]) for one in json.loads(done.stdout)["findings"] if one["severity"] == "error"}
    lines = text.splitlines()
    wanted = {
        (code, next(number for number, line in enumerate(lines, 1) if line.endswith(mark)))
        for code, mark in (("cuda-out-of-bounds", "# beyond"), ("cuda-shared-race", "# race"))
    }
    assert found == wanted, done.stderr
    assert "behind the end of x" in done.stdout


def test_memory_that_is_not_there_is_found(tmp_path):
    done = run(
        tmp_path, HEAD + "cuda.device_array(1 << 30)\ncuda.device_array(90 << 30, np.uint8)  # too much\n", "--json"
    )
    found = [one for one in json.loads(done.stdout)["findings"] if one["severity"] == "error"]
    assert [(one["code"], one["line"]) for one in found] == [("out-of-memory", 7)], done.stderr
    assert "8.00 GiB in use" in found[0]["message"]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stderr


@pytest.mark.parametrize("head", [HEAD, BUILT_IN + HEAD], ids=["numba-cuda", "numba"])
def test_blocks_of_numba_wait_for_each_other(tmp_path, head):
    done = run(tmp_path, head + GRID)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("text", [CORE, CORE_LINKED], ids=["template", "linked"])
def test_cuda_core(tmp_path, text):
    done = run(tmp_path, text)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_refused_launch_raises_where_it_is_made(tmp_path):
    text = (
        HEAD
        + """
@cuda.jit
def count(x):
    x[0] += 1

try:
    count[1, 2048](np.zeros(1))
except Exception as error:
    assert "INVALID_VALUE" in str(error), error
    print("done")
"""
    )
    done = run(tmp_path, text, "--json")
    assert "done" in done.stderr
    assert not [one for one in json.loads(done.stdout)["findings"] if one["severity"] == "error"]


def test_an_access_beyond_its_memory_ends_the_context(tmp_path):
    """numba/numba#7769: the host hears of it where it waits, and all that touches the device after it fails."""
    text = (
        HEAD
        + """
@cuda.jit
def beyond(x):
    x[1_000_000_000] = 1

x = cuda.to_device(np.zeros(8))
beyond[1, 1](x)
for heard in (cuda.synchronize, x.copy_to_host):
    try:
        heard()
    except Exception as error:
        print(str(error).split("> ")[-1].replace("[<CUresult.", ""))
cuda.current_context()
"""
    )
    done = run(tmp_path, text)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    assert all("CUDA_ERROR_ILLEGAL_ADDRESS" in line for line in lines), lines
    assert "Traceback" not in done.stderr
