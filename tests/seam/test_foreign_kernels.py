"""Without the extra, CUDA C++ of the program's own is refused with a sentence; C++ for the CPU compiles."""

from __future__ import annotations

import importlib
import operator
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import windtunnel
from windtunnel.errors import UnsupportedError
from windtunnel.session import Session


@pytest.fixture
def without_compiler(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)


@pytest.mark.usefixtures("without_compiler")
def test_cuda_sources_are_refused(session: Session, tmp_path: Path) -> None:
    cpp_extension = importlib.import_module("torch.utils.cpp_extension")
    said = r"CUDA sources for 'scale'.*no processor to run it on.*windtunnel\[cuda\]"
    with pytest.raises(UnsupportedError, match=said):
        cpp_extension.load_inline(
            "scale", cpp_sources="", cuda_sources="__global__ void k() {}", build_directory=str(tmp_path)
        )
    with pytest.raises(UnsupportedError, match=r"kernel\.cu"):
        cpp_extension.load("scale", ["kernel.cu"], build_directory=str(tmp_path))


@pytest.mark.usefixtures("without_compiler")
def test_jiterator_is_refused(session: Session) -> None:
    code = "template <typename T> T scaled(T x, T y, T alpha) { return x + alpha * y; }"
    function = torch.cuda.jiterator._create_jit_fn(code, alpha=1.0)
    x = torch.ones(2, device="cuda")
    with pytest.raises(UnsupportedError, match="'scaled_kernel' is compiled as CUDA"):
        function(x, x)


def test_no_hook_stays_behind() -> None:
    before = list(sys.meta_path)
    with windtunnel.emulate("V100"):
        assert sys.meta_path != before
    assert sys.meta_path == before


def test_an_allocator_of_the_programs_own_is_refused(session: Session) -> None:
    allocator = torch.cuda.memory._CUDAAllocator(None)
    with pytest.raises(UnsupportedError, match="CUDAPluggableAllocator calls functions of CUDA's driver"):
        torch.cuda.memory.change_current_allocator(allocator)


@pytest.mark.usefixtures("without_compiler")
def test_kernels_compiled_at_run_time_are_refused(session: Session) -> None:
    compile_kernel = getattr(torch.cuda, "_compile_kernel", None)
    if compile_kernel is not None:
        with pytest.raises(UnsupportedError, match="'zero' is compiled as CUDA C"):
            compile_kernel('extern "C" __global__ void zero(float* x) { x[0] = 0; }', "zero")


def test_tuning_has_switches_and_no_results(session: Session) -> None:
    tunable = torch.cuda.tunable
    assert (tunable.is_enabled(), tunable.get_filename()) == (False, "tunableop_results.csv")
    tunable.enable(True)
    tunable.set_filename("tuned.csv", insert_device_ordinal=True)
    torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
    assert (tunable.is_enabled(), tunable.get_filename(), tunable.get_results()) == (True, "tuned0.csv", ())


LIBRARIES = [
    (
        "cupy",
        "def zeros(shape): return 'made'",
        "zeros",
        r"cupy.zeros: CuPy's arrays are made by a copy of NVIDIA's runtime",
    ),
    (
        "cupy",
        "class cuda:\n    class runtime:\n        def getDeviceCount(_): return 'made'",
        "cuda.runtime.getDeviceCount",
        r"cupy.cuda.runtime.getDeviceCount: CuPy's arrays",
    ),
    ("numba.cuda", "def jit(function): return 'made'", "jit", r"numba.cuda.jit: Numba compiles CUDA kernels"),
]


def write_library(folder: Path, library: str, code: str) -> None:
    parts = library.split(".")
    folder.joinpath(*parts).mkdir(parents=True)
    (folder / parts[0] / "__init__.py").touch()
    folder.joinpath(*parts, "__init__.py").write_text(code)


@pytest.mark.parametrize(("library", "code", "use", "said"), LIBRARIES)
def test_other_libraries_kernels_are_refused(library, code, use, said, tmp_path, monkeypatch):
    write_library(tmp_path, library, code)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == library.partition(".")[0]]:
        monkeypatch.delitem(sys.modules, name)
    with windtunnel.emulate("V100"):
        module = importlib.import_module(library)
        with pytest.raises(UnsupportedError, match=said):
            operator.attrgetter(use)(module)(None)
    assert operator.attrgetter(use)(module)(None) == "made"


@pytest.mark.long
@pytest.mark.parametrize(("library", "code", "use", "said"), LIBRARIES)
def test_they_are_refused_in_a_run_without_a_framework_too(library, code, use, said, tmp_path):
    write_library(tmp_path, library, code)
    (tmp_path / "program.py").write_text(f"import sys, {library}\n{library}.{use}(None)\n")
    command = [sys.executable, "-m", "windtunnel", "run", "-q", str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 66
    assert re.search(said, done.stderr)


KERNELS = {
    "inline": "from torch.utils.cpp_extension import load_inline\n"
    "load_inline('scale', cpp_sources='', cuda_sources='__global__ void k() {}')",
    "jiterator": "f = torch.cuda.jiterator._create_jit_fn('template <typename T> T scaled(T x) { return x; }')\n"
    "f(torch.ones(2, device='cuda'))",
}


@pytest.mark.long
@pytest.mark.parametrize("code", KERNELS.values(), ids=KERNELS)
def test_a_run_that_compiles_cuda_ends_with_66(code, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "program.py").write_text(f"import sys\nsys.modules['llvmlite'] = None\nimport torch\n{code}\n")
    command = [sys.executable, "-m", "windtunnel", "run", "-q", str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 66
    assert "and an emulated GPU has no processor to run it on" in done.stderr
