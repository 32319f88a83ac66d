"""Modules of many kernels, each of which is compiled when it is first launched."""

from __future__ import annotations

import ctypes
import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from tests.ptx.cuda import packed
from windtunnel import ptx
from windtunnel.compiler import parts
from windtunnel.compiler.clang import required
from windtunnel.compiler.passes import Settings

SOURCE = """
__device__ int total = 5;
__constant__ float factors[2] = {2.f, 3.f};
template <int N> __device__ __noinline__ float scaled(float x) { return x * factors[N % 2] + N; }
template <int N> __global__ void f(const float *x, float *y) {
  __shared__ float tile[32];
  float sum;
  if (N != 7 || x[0] < 0) sum = scaled<N>(x[threadIdx.x]);
  tile[threadIdx.x] = sum;
  __syncthreads();
  y[threadIdx.x] = tile[31 - threadIdx.x];
  if (threadIdx.x == 0) atomicAdd(&total, N);
}
""" + "".join(f"template __global__ void f<{n}>(const float *, float *);\n" for n in range(parts.MANY + 4))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("many")
    (folder / "many.cu").write_text(SOURCE)
    Settings(required(), (8, 0), many=True).device(folder / "many.cu", folder / "many.ptx")
    return (folder / "many.ptx").read_text()


def test_kernels_of_a_module_share_its_variables(text: str, tmp_path: Path) -> None:
    module = ptx.load(text, tmp_path)
    assert isinstance(module, ptx.PartedModule)
    assert len(module.kernels) == parts.MANY + 4
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    memory = ptx.Allocations([ptx.Allocation(v.ctypes.data, v.nbytes) for v in (x, y)])
    for number in (2, 3):
        kernel = module.kernels[f"_Z1fILi{number}EEvPKfPf"]
        launch = kernel.launch((1, 1, 1), (32, 1, 1), 0, packed([x, y]), memory=memory, output=print)
        assert (launch.faults, launch.trap) == ((), None)
        np.testing.assert_array_equal(y, (x * number + number)[::-1])
    total = module.variables["total"]
    assert ctypes.c_int.from_address(total.address).value == 10
    assert len(list(tmp_path.glob("*.ptx"))) == 3  # of two kernels and of the variables


def test_a_variable_that_nothing_sets_is_found_in_one_of_many(text: str, tmp_path: Path) -> None:
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    memory = ptx.Allocations([ptx.Allocation(v.ctypes.data, v.nbytes) for v in (x, y)])
    kernel = ptx.load(text, tmp_path).kernels["_Z1fILi7EEvPKfPf"]
    launch = kernel.launch((1, 1, 1), (32, 1, 1), 0, packed([x, y]), memory=memory, output=print)
    assert [(fault.kind, fault.line) for fault in launch.faults] == [("uninitialized-read", 7)]


def test_a_kernel_keeps_the_variables_of_a_module_that_is_gone(text: str, tmp_path: Path) -> None:
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    memory = ptx.Allocations([ptx.Allocation(v.ctypes.data, v.nbytes) for v in (x, y)])
    module = ptx.load(text, tmp_path)
    kernel, total = module.kernels["_Z1fILi3EEvPKfPf"], module.variables["total"].address
    owner = weakref.ref(module)
    del module
    gc.collect()
    assert owner() is None
    others = [np.full(size, 255, np.uint8) for size in range(1, 512) for _ in range(8)]  # where freed memory would be
    kernel.launch((1, 1, 1), (32, 1, 1), 0, packed([x, y]), memory=memory, output=print)
    assert ctypes.c_int.from_address(total).value == 8
    np.testing.assert_array_equal(y, (x * 3 + 3)[::-1])
    assert all((one == 255).all() for one in others)
