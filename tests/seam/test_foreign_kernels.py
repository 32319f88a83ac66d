"""CUDA C++ of the program's own is refused with a sentence; C++ for the CPU compiles."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

import understudy
from understudy.errors import UnsupportedError
from understudy.session import Session


def test_cuda_sources_are_refused(session: Session, tmp_path: Path) -> None:
    cpp_extension = importlib.import_module("torch.utils.cpp_extension")
    with pytest.raises(UnsupportedError, match=r"CUDA sources for 'scale'.*no processor to run it on"):
        cpp_extension.load_inline(
            "scale", cpp_sources="", cuda_sources="__global__ void k() {}", build_directory=str(tmp_path)
        )
    with pytest.raises(UnsupportedError, match=r"kernel\.cu"):
        cpp_extension.load("scale", ["kernel.cu"], build_directory=str(tmp_path))


def test_jiterator_is_refused(session: Session) -> None:
    code = "template <typename T> T scaled(T x, T y, T alpha) { return x + alpha * y; }"
    function = torch.cuda.jiterator._create_jit_fn(code, alpha=1.0)
    x = torch.ones(2, device="cuda")
    with pytest.raises(UnsupportedError, match="compiles 'scaled' as CUDA"):
        function(x, x)


def test_no_hook_stays_behind() -> None:
    before = list(sys.meta_path)
    with understudy.emulate("V100"):
        assert sys.meta_path != before
    assert sys.meta_path == before


def test_an_allocator_of_the_programs_own_is_refused(session: Session) -> None:
    allocator = torch.cuda.memory._CUDAAllocator(None)
    with pytest.raises(UnsupportedError, match="CUDAPluggableAllocator calls functions of CUDA's driver"):
        torch.cuda.memory.change_current_allocator(allocator)


def test_kernels_compiled_at_run_time_are_refused(session: Session) -> None:
    compile_kernel = getattr(torch.cuda, "_compile_kernel", None)
    if compile_kernel is not None:
        with pytest.raises(UnsupportedError, match="compiles 'zero' as CUDA C"):
            compile_kernel('extern "C" __global__ void zero(float* x) { x[0] = 0; }', "zero")


def test_tuning_has_switches_and_no_results(session: Session) -> None:
    tunable = torch.cuda.tunable
    assert (tunable.is_enabled(), tunable.get_filename()) == (False, "tunableop_results.csv")
    tunable.enable(True)
    tunable.set_filename("tuned.csv", insert_device_ordinal=True)
    torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
    assert (tunable.is_enabled(), tunable.get_filename(), tunable.get_results()) == (True, "tuned0.csv", ())


@pytest.mark.parametrize(
    ("library", "code", "use", "said"),
    [
        ("cupy", "def zeros(shape): return 'made'", "zeros", r"cupy\.zeros: CuPy compiles what it computes as CUDA"),
        ("numba.cuda", "def jit(function): return 'made'", "jit", r"numba\.cuda\.jit: Numba compiles CUDA kernels"),
    ],
)
def test_other_libraries_kernels_are_refused(library, code, use, said, tmp_path, monkeypatch):
    parts = library.split(".")
    folder = tmp_path.joinpath(*parts)
    folder.mkdir(parents=True)
    (tmp_path / parts[0] / "__init__.py").touch()
    (folder / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == parts[0]]:
        monkeypatch.delitem(sys.modules, name)
    with understudy.emulate("V100"):
        module = importlib.import_module(library)
        with pytest.raises(UnsupportedError, match=said):
            getattr(module, use)(None)
    assert getattr(module, use)(None) == "made"
