"""Bits that an H200 computed for CUDA C++ functions (`tools/hardware/cuda/functions.cu`), and those of the same kernels
here.

`data/h200-functions.ptx.gz` is that file's device code from clang. What is a rounded operation has the same bits.
Approximations of the special-function unit come from tables that NVIDIA does not publish: they stay within the error
bounds of the CUDA guide."""

from __future__ import annotations

import functools
import gzip
import json
import re
from pathlib import Path

import pytest

from tests.ptx.cuda import np, packed
from tests.ptx.harness import run
from windtunnel import ptx

HERE = Path(__file__).parent
ANSWERS = HERE.parent / "conformance/hardware/2026-11-27-H200-answers.json.gz"
SOURCE = HERE.parents[1] / "tools/hardware/cuda/functions.cu"
EXACT = [
    "division",
    "__frsqrt_rn_",
    "__saturatef_",
    "fmaf_",
    "fminf_",
    "rintf_",
    "roundf_",
    "float2int",
    "float2uint",
    "double2float",
    "sqrtf_",
    "rcp_rn",
    "sqrt_rn",
    "fmodf_",
    "half_hexp",
    "half_hexp2",
    "half_hlog",
    "half_hlog2",
    "half_hsin",
    "half_hcos",
    "half_hsqrt",
    "half_hrsqrt",
    "half_hrcp",
    "half_htanh",
    "half_hdiv",
    "half_hadd",
    "half_hmul",
    "half_hfma",
    "half_hmax",
    "bfloat_hexp",
    "bfloat_hexp2",
    "bfloat_hlog",
    "bfloat_hsqrt",
    "bfloat_hrsqrt",
    "bfloat_hrcp",
    "bfloat_hdiv",
    "bfloat_hadd",
    "bfloat_hmul",
    "bfloat_hfma",
]
# Units in the last place (CUDA C++ Programming Guide, "Mathematical Functions").
ULPS = {
    "expf_": 1, "exp2f_": 2, "exp10f_": 2, "expm1f_": 1, "logf_": 1, "log2f_": 1, "log10f_": 2, "log1pf_": 1,
    "sinf_": 2, "cosf_": 2,
    "tanf_": 4, "tanhf_": 2, "sinhf_": 3, "asinf_": 2, "acosf_": 2, "atanf_": 2, "erff_": 2, "erfcf_": 4,
    "erfinvf_": 2, "tgammaf_": 5,
    "lgammaf_": 6, "cbrtf_": 1, "rsqrtf_": 2, "powf_": 4, "atan2f_": 3, "hypotf_": 3, "normcdff_": 5, "sinpif_": 1,
    "__expf_": 2,
    "__exp10f_": 2, "__fdividef_": 2, "ex2": 2, "ex2_ftz": 2, "rcp": 1, "rcp_ftz": 1, "rsqrt_": 2, "rsqrt_ftz": 2,
    "sqrt_": 1,
    "half_htanh_approx": 1, "bfloat_htanh_approx": 1,
}  # fmt: skip
# Absolute errors: sines within -pi ... pi, logarithms within 0.5 ... 2; of a relative one, tanh's 2^-11.
ABSOLUTE = {"sin_": 2**-20.9, "cos_": 2**-20.9, "__sinf_": 2**-20.9, "__cosf_": 2**-20.9, "lg2": 2**-22,
    "lg2_ftz": 2**-22, "__log2f_": 2**-22,
            "__logf_": 2**-21.41, "__log10f_": 2**-22, "tanh_": 2**-10.987, "j0f_": 2.2e-6}  # fmt: skip


@functools.cache
def answers() -> dict[str, str]:
    with gzip.open(ANSWERS) as file:
        found: dict[str, str] = json.load(file)["stages"]["cuda"]["native"]["functions"]
    return found


@functools.cache
def module() -> ptx.Module:
    return ptx.load(gzip.decompress((HERE / "data/h200-functions.ptx.gz").read_bytes()).decode())


def bits(name: str) -> np.ndarray:
    text = answers()[name]
    return np.array([int(text[i : i + 8], 16) for i in range(0, len(text), 8)], np.uint32)


def answer(name: str) -> np.ndarray:
    """The H200's bits; a PTX instruction's line has the instruction's name."""
    instructions = dict(re.findall(r'ASM1\((\w+), "([^"]+)"\)', SOURCE.read_text()))
    prefixes = {"half_": "half ", "bfloat_": "bfloat16 "}
    for prefix, written in prefixes.items():
        if name.startswith(prefix):
            return bits(written + name.removeprefix(prefix))
    return bits(instructions.get(name, name))


def computed(name: str) -> np.ndarray:
    x, y, out = bits("x"), bits("y"), np.zeros(256, np.uint32)
    kernel = module().kernels[f"_Z4eachI{len(name)}{name}EvPKfS2_Pj"]
    memory = ptx.Allocations([ptx.Allocation(a.ctypes.data, a.nbytes) for a in (x, y, out)])
    kernel.launch((1, 1, 1), (256, 1, 1), 0, packed([x, y, out]), memory=memory, checks="none", output=print)
    return out


@pytest.mark.parametrize("name", EXACT)
def test_bits_are_the_hardwares(name: str) -> None:
    assert computed(name).tolist() == answer(name).tolist()


def numbers(raw: np.ndarray, name: str) -> np.ndarray:
    if name.startswith("half_"):
        return raw.astype(np.uint16).view(np.float16).astype(np.float64)
    if name.startswith("bfloat_"):
        return (raw << 16).view(np.float32).astype(np.float64)
    return raw.view(np.float32).astype(np.float64)


@pytest.mark.parametrize("name", ULPS)
def test_approximations_are_within_the_guides_bounds(name: str) -> None:
    got, want = computed(name).astype(np.int64), answer(name).astype(np.int64)
    real_got, real_want = numbers(got.astype(np.uint32), name), numbers(want.astype(np.uint32), name)
    assert (np.isnan(real_got) == np.isnan(real_want)).all()
    assert (np.isinf(real_got) == np.isinf(real_want)).all()
    top = 1 << (15 if name.startswith(("half_", "bfloat_")) else 31)
    ordered = [np.where(v & top, -(v & (top - 1)), v) for v in (got, want)]
    assert np.abs(ordered[0] - ordered[1])[np.isfinite(real_want)].max() <= ULPS[name]


@pytest.mark.parametrize("name", ABSOLUTE)
def test_absolute_errors_are_within_the_guides_bounds(name: str) -> None:
    with np.errstate(all="ignore"):
        x = bits("x").view(np.float32).astype(np.float64)
        got, want = numbers(computed(name), name), numbers(answer(name), name)
        near = (
            (np.abs(x) <= np.pi)
            if "sin" in name or "cos" in name
            else (x > 0.5) & (x < 2)
            if "l" in name
            else np.isfinite(x)
        )
        error = np.abs(got - want)
        if name == "tanh_":
            error = error / np.abs(want)
        assert np.nanmax(error[near & np.isfinite(want)]) <= ABSOLUTE[name]


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_eight_bits(kind: str) -> None:
    text = (
        f"{{{{ .reg .b32 %x<3>; .reg .b16 %y<3>; mov.b32 %x1, 0f00000000; cvt.rn.satfinite.{kind}x2.f32 "
        f"%y1, %x1, {{a0}};"
        f" cvt.rn.f16x2.{kind}x2 %x2, %y1; mov.b32 {{{{%y1, %y2}}}}, %x2; cvt.f32.f16 {{d0}}, %y1; }}}}"
    )
    found = run([(text, ["f32"])], ["f32"], [bits("x").tolist()])[0][0]
    got, want = np.array(found, np.uint32).view(np.float32), answer(f"fp8_{kind}").view(np.float32)
    assert np.array_equal(got, want, equal_nan=True)
