"""CUDA C++ compiled by clang with a few lines of our own, and launched."""

from __future__ import annotations

import functools
import os
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from windtunnel import ptx
from windtunnel.compiler.clang import required

np = pytest.importorskip("numpy")
pytest.importorskip("llvmlite")
PRELUDE = """
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __constant__ __attribute__((constant))
#define __shared__ __attribute__((shared))
#define threadIdx_x __nvvm_read_ptx_sreg_tid_x()
#define threadIdx_y __nvvm_read_ptx_sreg_tid_y()
#define blockIdx_x __nvvm_read_ptx_sreg_ctaid_x()
#define blockIdx_y __nvvm_read_ptx_sreg_ctaid_y()
#define blockDim_x __nvvm_read_ptx_sreg_ntid_x()
#define gridDim_x __nvvm_read_ptx_sreg_nctaid_x()
#define __syncthreads() __nvvm_bar_sync(0)
#define __syncwarp(...) __nvvm_bar_warp_sync(0xffffffffu __VA_OPT__(& (__VA_ARGS__)))
#define KERNEL extern "C" __global__ void
extern "C" __device__ int vprintf(const char *, const void *);
extern "C" __device__ void __assertfail(const char *, const char *, unsigned, const char *, unsigned long);
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
#line 1 "kernel.cu"
"""


@functools.cache
def compiled(source: str, arch: str = "sm_80") -> str:
    """PTX of a source whose first line is line 1 of kernel.cu."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cu"
        path.write_text(PRELUDE + source)
        flags = [
            "-x",
            "cuda",
            "--cuda-device-only",
            "-nocudainc",
            "-nocudalib",
            "-O3",
            "-S",
            "-gline-tables-only",
            "-std=c++17",
            "-w",
        ]
        command = [*required().command, *flags, f"--cuda-gpu-arch={arch}", str(path), "-o", "-"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
        assert done.returncode == 0, done.stderr
        return done.stdout


def packed(values: Sequence[object]) -> bytes:
    """Arguments as a launch passes them: pointers of arrays, ints, floats."""
    data = b""
    for value in values:
        if isinstance(value, np.ndarray):
            part = struct.pack("<Q", value.ctypes.data)
        elif isinstance(value, float):
            part = struct.pack("<f", value)
        else:
            part = struct.pack("<i", value)
        data += b"\0" * (-len(data) % len(part)) + part
    return data


def launch(
    source: str,
    values: Sequence[object],
    grid: Sequence[int] = (1,),
    block: Sequence[int] = (32,),
    *,
    kernel: str = "k",
    dynamic: int = 0,
    checks: ptx.Checks = "all",
    schedule: int = 0,
    blank: Sequence[object] = (),
    printed: list[str] | None = None,
    arch: str = "sm_80",
    most_resident: int = 1024,
) -> ptx.Launch:
    """Runs a kernel on NumPy arrays; those in `blank` count as written by nobody."""
    allocations = [
        ptx.Allocation(
            v.ctypes.data, v.nbytes, f"array {j}", bytearray(b"\1" * v.nbytes) if any(v is b for b in blank) else None
        )
        for j, v in enumerate(values)
        if isinstance(v, np.ndarray)
    ]

    def three(of: Sequence[int]) -> tuple[int, int, int]:
        x, y, z = (*of, 1, 1)[:3]
        return x, y, z

    found = ptx.load(compiled(source, arch)).kernels[kernel]
    return found.launch(
        three(grid), three(block), dynamic, packed(values), memory=ptx.Allocations(allocations), checks=checks,
        schedule=schedule, most_resident=most_resident, cooperative=True,
        output=(printed if printed is not None else []).append,
    )  # fmt: skip
