"""Dtypes that the CPU computes and CUDA does not: what works on a laptop fails on the cluster, and so here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from understudy.session import Session

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
