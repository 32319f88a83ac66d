"""Options of nvcc as clang has them, and sources that stand in a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.compiler import torch_headers
from windtunnel.compiler.kernels import in_program
from windtunnel.compiler.passes import fast_math_in, translated
from windtunnel.errors import UnsupportedError


def test_what_only_nvcc_has_is_left_out() -> None:
    given = [
        "-O3", "--use_fast_math", "-gencode", "arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90",
        "-Xptxas", "-v", "-DN=3", "-I", "include", "--expt-relaxed-constexpr", "-std=c++17", "-lineinfo", "-fopenmp",
    ]  # fmt: skip
    assert translated(given) == ("-DN=3", "-I", "include")
    assert fast_math_in(given)
    assert not fast_math_in(["-O3"])


def test_a_source_knows_its_lines_in_the_program() -> None:
    program = 'x = 1\ncode = r"""\n__global__ void f() {\n}\n"""\n'
    marked = in_program("\n__global__ void f() {\n}\n", "train.py", program)
    assert marked == '#line 3 "train.py"\n__global__ void f() {\n}\n'
    assert in_program("made up", "train.py", program) == "made up"


def test_headers_of_another_pytorch_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ATen/core").mkdir(parents=True)
    (tmp_path / "ATen/core/TensorBase.h").write_text("namespace at {}\n")
    with pytest.raises(UnsupportedError, match="no line 'return impl_->device"):
        torch_headers.write(tmp_path, tmp_path / "changed")
