"""A type that CUDA's kernel does not have is refused in its words: the kernel's name is CUDA's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import windtunnel

CALLS: dict[str, Callable[[torch.Tensor], object]] = {
    "elu": F.elu, "hardshrink": F.hardshrink, "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu, "mish": F.mish, "softplus": F.softplus, "silu": F.silu, "glu": F.glu,
    "frac": torch.frac, "huber": lambda x: F.huber_loss(x, x), "smooth_l1": lambda x: F.smooth_l1_loss(x, x),
    "mse": lambda x: F.mse_loss(x, x), "hypot": lambda x: torch.hypot(x, x),
    "nextafter": lambda x: torch.nextafter(x, x), "logaddexp": lambda x: torch.logaddexp(x, x),
    "threshold": lambda x: F.threshold(x > 0, 0, 0), "gcd": lambda x: torch.gcd(x.float(), x.float()),
    "bitwise_and": lambda x: x.float() & x.float(), "bitwise_not": lambda x: torch.bitwise_not(x.float()),
    "rshift": lambda x: (x > 0) >> (x > 0), "fmod": lambda x: torch.fmod(x > 0, x > 0),
}  # fmt: skip


FURTHER: dict[str, Callable[[torch.Tensor], object]] = {
    "abs_cuda": lambda x: torch.abs(x.to(torch.uint16)), "log10_cuda": lambda x: torch.log10(x.to(torch.float8_e4m3fn)),
    "mul_cuda": lambda x: torch.deg2rad(x.to(torch.float8_e4m3fn)), "compare_cuda": lambda x: x.cfloat() <= x.cfloat(),
    "topk_out_cuda": lambda x: x.to(torch.uint16).topk(1), "ufunc_add_CUDA": lambda x: x.to(torch.float8_e4m3fn) + 1,
    "addmv_impl_cuda": lambda x: torch.mv(x.view(2, 2) > 0, x[:2] > 0),
    "sum_cuda": lambda x: x.to(torch.float8_e4m3fn).sum(), "host_softmax": lambda x: x.softmax(-1),
    "pow_cuda": lambda x: x.to(torch.float8_e4m3fn).pow(x.to(torch.float8_e4m3fn)),
}  # fmt: skip
NAMES = {f"{name}_cuda": call for name, call in CALLS.items()} | FURTHER


@pytest.mark.parametrize("name", NAMES)
def test_the_kernels_name_is_cudas(name: str) -> None:
    with windtunnel.emulate("H200"):
        x = torch.ones(4, dtype=torch.int64, device="cuda")
        with pytest.raises(RuntimeError, match=f'"{name}" not implemented for'):
            NAMES[name](x)


@pytest.mark.parametrize(("dtype", "kind"), [(torch.bool, "Bool"), (torch.cfloat, "ComplexFloat")])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_check_of_the_cpu_alone_is_refused_by_the_kernels_name(
    dtype: torch.dtype, kind: str, shape: tuple[int, ...]
) -> None:
    """pytorch/pytorch#126659: of numbers and of rows."""
    with windtunnel.emulate("H200"), pytest.raises(RuntimeError) as caught:
        torch.ones(shape, dtype=dtype, device="cuda").topk(1)
    assert str(caught.value) == f"\"topk_out_cuda\" not implemented for '{kind}'"
