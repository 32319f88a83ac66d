"""Kernels and parameters by the names that they have in their source."""

from __future__ import annotations

from pathlib import Path

from windtunnel.seam.cuda_runtime.names import demangled, parameter_names, split

SOURCE = """template <typename T> __device__ void add(T *a) {}
template <typename scalar_t, int N>
__global__ void __launch_bounds__(256) row_sum(const scalar_t *__restrict__ x, Pair<int, N> sizes,
                                               scalar_t *out) { add(out); }
"""


def test_a_kernel_is_named_with_its_template_arguments() -> None:
    assert demangled("_Z7row_sumIfLi4EEvPKT_PS0_") == "row_sum<float, 4>"
    assert demangled("_ZN2at6nativeL1kEPf") == "at::native::k"
    assert demangled("plain") == "plain"


def test_a_parameter_is_named_as_in_the_source(tmp_path: Path) -> None:
    file = tmp_path / "kernel.cu"
    file.write_text(SOURCE)
    named = [parameter_names(str(file), "row_sum<float, 4>", f"argument {at}") for at in range(3)]
    assert named == ["x", "sizes", "out"]
    assert parameter_names(str(file), "another", "argument 1") == "parameter 2"
    assert parameter_names(str(file), "row_sum", None) == ""


def test_lines_of_the_preprocessor_are_no_parameters(tmp_path: Path) -> None:
    file = tmp_path / "kernel.cu"
    file.write_text("__global__ void zeroize(unsigned *elems\n#ifdef COUNTED\n, int count\n#endif\n) {}\n")
    assert parameter_names(str(file), "zeroize", "argument 0") == "elems"


def test_commas_in_brackets_separate_nothing() -> None:
    assert split("a, b<c, d>, (e, f)") == ["a", " b<c, d>", " (e, f)"]
    assert split(" ") == []
