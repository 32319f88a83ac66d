"""`--cuda-compiler nvcc`, with a stand-in for it: nobody's toolkit is here."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from helpers import stand_in_nvcc
from windtunnel import emulate
from windtunnel.cli.kernel import command
from windtunnel.compiler import nvcc
from windtunnel.errors import UnsupportedError
from windtunnel.seam.cuda_runtime.names import found_as, without_file

pytestmark = pytest.mark.long
SOURCE = r"""
#include <torch/extension.h>
#ifdef __CUDA_ARCH__
#ifndef __NVCC_STAND_IN__
#error clang makes PTX
#endif
#endif
static __constant__ float scale[1];
static __global__ void hidden(float *x) { x[threadIdx.x] *= scale[0]; }
namespace { __global__ void nameless(float *x) { x[threadIdx.x] += ADDED; } }
__global__ void heavy(float *x) { x[threadIdx.x % 32] = 0; }
torch::Tensor change(torch::Tensor x) {
  float two = 2;
  cudaMemcpyToSymbol(scale, &two, sizeof two);
  hidden<<<1, 32>>>(x.data_ptr<float>());
  nameless<<<1, 32>>>(x.data_ptr<float>());
  return x;
}
int64_t refused(torch::Tensor x) { heavy<<<1, 1024>>>(x.data_ptr<float>()); return cudaGetLastError(); }
"""
DECLARED = "torch::Tensor change(torch::Tensor x); int64_t refused(torch::Tensor x);"
ADD = "__global__ void add(const float *x, float *y, int n) {\n  int i = threadIdx.x;\n  y[i] = x[i] + 1;\n}\n"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of a stand-in that CUDA_HOME names."""
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[1]}:{Path(nvcc.__file__).parents[2]}")
    stand_in_nvcc.write(tmp_path / "cuda", tmp_path / "log")
    return tmp_path / "log"


def test_device_code_of_an_extension_is_compiled_by_it(log: Path) -> None:
    with emulate("H100", cuda_compiler="nvcc"):
        cpp_extension = importlib.import_module("torch.utils.cpp_extension")
        module = cpp_extension.load_inline("names", DECLARED, SOURCE, functions=["change", "refused"],
                                           extra_cuda_cflags=["-DADDED=1", "-gencode", "arch=compute_80,code=sm_80",
                                                              "--use_fast_math"])  # fmt: skip
        x = torch.arange(32.0, device="cuda")
        assert torch.equal(module.change(x).cpu(), torch.arange(32.0) * 2 + 1)
        assert module.refused(x) == 701  # 128 registers for each of 1,024 threads
    called = log.read_text(encoding="utf-8")
    assert "-arch=compute_90" in called
    assert "-DADDED=1" in called
    assert "--use_fast_math" in called
    assert "compute_80" not in called


def test_registers_of_one_kernel_are_the_assemblers(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "add.cu"
    file.write_text(ADD, encoding="utf-8")
    launch = ["--launch", "add<<<1, 32>>>(float[32], float[31], 32)"]
    done = CliRunner().invoke(command, [str(file), *launch, "--cuda-compiler", "nvcc"])
    assert "40 registers a thread (by ptxas)" in done.output
    assert "add.cu:3" in done.output
    assert "estimated" in CliRunner().invoke(command, [str(file), *launch]).output


def test_a_missing_one_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in nvcc.HOMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match="no nvcc is on the PATH or in CUDA_HOME"):
        nvcc.required()


def test_options_of_the_output_and_of_the_gpu_are_left_out() -> None:
    given = ["-O3", "-arch", "sm_80", "-gencode=arch=compute_80,code=sm_80", "-rdc=true", "-lcublas", "-lineinfo",
             "-maxrregcount", "64", "-Xptxas", "-v"]  # fmt: skip
    assert nvcc.wanted(given) == ("-O3", "-lineinfo", "--maxrregcount=64", "-Xptxas", "-v")


def test_names_of_one_file_alone_are_the_same_to_both_compilers() -> None:
    internal = "_INTERNAL_0a1b2c3d_8_names_cu_f3e9d8c2_17"
    assert without_file("_ZL5table") == without_file(f"_ZN{len(internal)}{internal}5tableE") == "table"
    assert without_file("_ZN2nsL3fooEPf") == without_file(f"_ZN{len(internal)}{internal}2ns3fooEPf")
    names = ["_Z3barPf", f"_ZN{len(stand_in_nvcc.NAMESPACE)}{stand_in_nvcc.NAMESPACE}3fooEPf"]
    assert found_as("_ZN12_GLOBAL__N_13fooEPf", names) == names[1]
    assert found_as("_ZL3fooPf", names) is None
