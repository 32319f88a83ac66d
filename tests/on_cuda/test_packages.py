"""Packages with CUDA sources, built by their `setup.py` and imported like any other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
SETUP = """
import os
import subprocess
import torch
from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CUDAExtension

assert torch.cuda.is_available()
said = subprocess.check_output([CUDA_HOME + "/bin/nvcc", "-V"], text=True)
assert f"release {torch.version.cuda}" in said
setup(
    name="rowops",
    packages=["rowops"],
    ext_modules=[
        CUDAExtension(
            "rowops._C",
            ["csrc/bind.cpp", "csrc/kernel.cu"],
            include_dirs=[os.path.abspath("csrc/include")],
            define_macros=[("SCALE", "3")],
            extra_compile_args={"cxx": ["-O3"], "nvcc": ["-O3", "-gencode", "arch=compute_80,code=sm_80"]},
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
"""
HEADER = """#pragma once
#include <torch/extension.h>
torch::Tensor scale(torch::Tensor x);
constexpr float EXTRA = {extra};
"""
BIND = """
#include <torch/extension.h>
#include "deep/ops.h"
torch::Tensor checked(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "x must be on CUDA");
  return scale(x.contiguous());
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scale", &checked, "scale"); }
"""
KERNEL = """
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include "deep/ops.h"
template <typename T> __global__ void scale_kernel(const T *x, T *y, int64_t n) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * T(SCALE) + T(EXTRA);
}
torch::Tensor scale(torch::Tensor x) {
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto y = torch::empty_like(x);
  int64_t n = x.numel();
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scale", [&] {
    scale_kernel<scalar_t><<<(n + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), n); });
  AT_CUDA_CHECK(cudaGetLastError());
  return y;
}
"""
USE = """
import torch
import rowops._C as ops

x = torch.randn(1000, device="cuda")
torch.testing.assert_close(ops.scale(x), x * 3 + {extra})
try:
    ops.scale(torch.ones(3))
except RuntimeError as error:
    assert "x must be on CUDA" in str(error)
else:
    raise AssertionError("a tensor of the host was taken")


@torch.library.custom_op("rowops::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return ops.scale(x)


scale.register_fake(torch.empty_like)
scale.register_autograd(lambda context, gradient: gradient * 3)
x.requires_grad_()
found = torch.compile(lambda x: scale(x.sin()).cos().sum(), backend="aot_eager")(x)
wanted = (x.sin() * 3 + {extra}).cos().sum()
torch.testing.assert_close(found, wanted)
torch.testing.assert_close(torch.autograd.grad(found, x), torch.autograd.grad(wanted, x))
"""


def run(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "windtunnel", "run", "--gpus", "H100", "--quiet", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "csrc" / "include" / "deep").mkdir(parents=True)
    (tmp_path / "rowops").mkdir()
    (tmp_path / "rowops" / "__init__.py").write_text("import torch\n")
    (tmp_path / "setup.py").write_text(SETUP)
    (tmp_path / "csrc" / "bind.cpp").write_text(BIND)
    (tmp_path / "csrc" / "kernel.cu").write_text(KERNEL)
    return tmp_path


def test_a_package_is_built_imported_and_built_anew_where_a_header_changes(package: Path) -> None:
    for extra in ("1", "2"):
        (package / "csrc" / "include" / "deep" / "ops.h").write_text(HEADER.format(extra=extra))
        run(package, "setup.py", "build_ext", "--inplace")
        (package / "use.py").write_text(USE.format(extra=extra))
        run(package, "use.py")


def test_a_package_with_operators_and_gradients_in_cpp(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    shutil.copytree(Path(__file__).parent / "package", folder)
    run(folder, "setup.py", "build_ext", "--inplace")
    run(folder, "use.py")
