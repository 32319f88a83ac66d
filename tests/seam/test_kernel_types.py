"""Dtypes that the CPU computes and CUDA does not: what works on a laptop fails on the cluster, and so here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from windtunnel.session import Session

Work = Callable[[torch.Tensor], object]


@pytest.mark.parametrize(
    ("work", "kernel"),
    [
        (lambda x: x[0] @ x[0], "addmm_cuda"),
        (lambda x: torch.addmm(x[0], x[0], x[0]), "addmm_cuda"),
        (lambda x: F.linear(x[0], x[1]), "addmm_cuda"),
        (lambda x: x @ x, "baddbmm_cuda"),
        (lambda x: torch.einsum("bij,bjk->bik", x, x), "baddbmm_cuda"),
        (lambda x: x[0] @ x[0, 0], "addmv_impl_cuda"),
        (lambda x: x[0, 0].dot(x[0, 0]), "dot"),
        (lambda x: F.max_pool2d(x[None], 2), "max_pool2d_with_indices_out_cuda_frame"),
    ],
)
@pytest.mark.parametrize(("dtype", "name"), [(torch.int64, "Long"), (torch.int32, "Int"), (torch.uint8, "Byte")])
def test_integers_have_no_product_on_a_gpu(
    work: Work, kernel: str, dtype: torch.dtype, name: str, session: Session
) -> None:
    x = torch.ones(4, 4, 4, dtype=dtype, device="cuda")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=f"^\"{kernel}\" not implemented for '{name}'$"):
            work(x)
    work(x.cpu())
    work(x.half())


def test_pictures_of_bytes_are_not_resized(session: Session) -> None:
    picture = torch.zeros(1, 3, 8, 8, dtype=torch.uint8, device="cuda")
    F.interpolate(picture, scale_factor=2)
    with pytest.raises(RuntimeError, match="\"upsample_bilinear2d_out_frame\" not implemented for 'Byte'"):
        F.interpolate(picture, scale_factor=2, mode="bilinear")


@pytest.mark.parametrize(
    ("work", "dtype", "kernel"),
    [
        (lambda x: F.interpolate(x, 4, mode="bilinear", antialias=True), torch.uint8, "upsample_bilinear2d_out_frame"),
        (lambda x: torch.igamma(x, x), torch.bfloat16, "igamma_cuda"),
        (torch.angle, torch.float16, "angle_cuda"),
        (torch.histc, torch.bfloat16, "histc"),
        (lambda x: F.avg_pool2d(x, 2), torch.int64, "avg_pool2d_out_cuda_frame"),
    ],
)
def test_what_only_the_cpu_computes_is_refused(work: Work, dtype: torch.dtype, kernel: str, session: Session) -> None:
    x = torch.ones(1, 3, 8, 8).to(dtype)
    work(x)
    with pytest.raises(RuntimeError, match=f'^"{kernel}" not implemented for '):
        work(x.cuda())


def test_cudnn_convolves_no_long_integers(session: Session) -> None:
    x, weight = torch.ones(1, 3, 8, 8, dtype=torch.int64), torch.ones(2, 3, 3, 3, dtype=torch.int64)
    F.conv2d(x, weight)
    with pytest.raises(RuntimeError, match=r"^getCudnnDataTypeFromScalarType\(\) not supported for Long$"):
        F.conv2d(x.cuda(), weight.cuda())


def test_cudnn_has_no_engine_for_bfloat16_before_ampere(session: Session) -> None:
    x, weight = (torch.ones(1, 3, 4, 4, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    F.conv2d(x, weight)
    for benchmark, way in ((False, "GET"), (True, "FIND")):
        with pytest.raises(RuntimeError, match=f"^{way} was unable to find an engine to execute this computation$"):
            torch.cudnn_convolution(x, weight, (0, 0), (1, 1), (1, 1), 1, benchmark, True, False)
    half = torch.cudnn_convolution(x.half(), weight.half(), (0, 0), (1, 1), (1, 1), 1, False, True, False)
    assert half.dtype is torch.float16


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool])
def test_scatters_only_add_complex_numbers_and_truth_values(dtype: torch.dtype, session: Session) -> None:
    index = torch.zeros(2, 2, dtype=torch.int64, device="cuda")
    x = torch.ones(2, 2, dtype=dtype, device="cuda")
    x.scatter_(0, index, x.clone())
    x.scatter_(0, index, x.clone(), reduce="add")
    for combine in (
        lambda: x.scatter_(0, index, x.clone(), reduce="multiply"),
        lambda: x.scatter(0, index, 1, reduce="multiply"),
        lambda: x.scatter_reduce(0, index, x.clone(), "prod"),
    ):
        with pytest.raises(RuntimeError, match=r'^"cuda_scatter_.*" not implemented for .(ComplexFloat|Bool).$'):
            combine()
    assert torch.ones(2, 2, device="cuda").scatter_(0, index, 3.0, reduce="multiply")[0, 0] == 9


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_a_picture_too_high_for_a_grid_is_refused(mode: str, session: Session) -> None:
    for height, width in ((1 << 15, 4), (1 << 14, 256)):
        F.interpolate(torch.zeros(1, 1, height, width, dtype=torch.uint8, device="cuda"), scale_factor=2, mode=mode)
    high = torch.zeros(1, 1, 1 << 15, 256, dtype=torch.uint8, device="cuda")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^input tensor has spatial dimension larger than the kernel capacity$"):
            F.interpolate(high, scale_factor=2, mode=mode)
    F.interpolate(high.expand(1, 4, -1, -1).contiguous(memory_format=torch.channels_last), scale_factor=2, mode=mode)
