"""CuPy's raw kernels over PyTorch's tensors. Its wheel is large, and needs NVIDIA's driver for all else: a package of
its name stands for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CUPY = """class cuda:
    class runtime:
        pass
class RawKernel: pass
class RawModule: pass
def zeros(shape): pass
"""
HEAD = "import collections\nimport cupy\nimport numpy as np\nimport torch\n"
KERNEL = (
    HEAD
    + r'''
Stream = collections.namedtuple("Stream", ["ptr"])
code = r"""
extern "C" __global__ void saxpy(const float *x, const float *y, float *o, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) o[i] = a * x[i] + y[i];
}"""
saxpy = cupy.RawKernel(code, "saxpy")
x, y = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
o = torch.empty_like(x)
on = Stream(torch.cuda.current_stream().cuda_stream)
saxpy((8,), (128,), (x.data_ptr(), y.data_ptr(), o.data_ptr(), np.float32(2.5), 1000), stream=on)
torch.testing.assert_close(o, 2.5 * x + y)
try:
    saxpy((8,), (128,), (x, y, o, 2.5, 1000))
except TypeError as error:
    print(error)
try:
    saxpy((8,), (2048,), (x.data_ptr(), y.data_ptr(), o.data_ptr(), np.float32(2.5), 1000))
except RuntimeError as error:
    print(str(error).splitlines()[0])
cupy.zeros(3)
'''
)
MODULE = (
    HEAD
    + r'''
code = r"""
template <typename T> __global__ void scale(T *x, T by, int n) { int i = threadIdx.x; if (i < n) x[i] *= by; }
extern "C" __global__ void beyond(float *x) { x[threadIdx.x + 1] = 1; }
"""
module = cupy.RawModule(code=code, options=("-std=c++17",), name_expressions=["scale<double>"])
x = torch.arange(64, dtype=torch.float64, device="cuda")
module.get_function("scale<double>")((1,), (64,), (x.data_ptr(), 0.5, 64))
assert x.tolist() == [i / 2 for i in range(64)]
y = torch.zeros(32, device="cuda")
module.get_function("beyond")((1,), (32,), (y.data_ptr(),))
torch.cuda.synchronize()
'''
)


def ran(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "cupy.py").write_text(CUPY)
    (folder / "program.py").write_text(code)
    command = [sys.executable, "-m", "windtunnel", "run", "--gpus", "H100", "program.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_raw_kernel_takes_addresses_of_tensors(tmp_path: Path) -> None:
    done = ran(tmp_path, KERNEL)
    assert done.stdout.splitlines() == ["Unsupported type <class 'torch.Tensor'>", "CUDA error: invalid argument"]
    assert done.returncode == 66
    assert "cupy.zeros: CuPy's arrays are made by a copy of NVIDIA's runtime library" in done.stderr


def test_a_raw_module_has_instances_of_templates_and_its_faults_are_found(tmp_path: Path) -> None:
    done = ran(tmp_path, MODULE)
    assert done.returncode == 0, done.stderr
    assert "cuda-out-of-bounds (program.py:8)" in done.stderr
