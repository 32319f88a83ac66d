"""Under `torch.inference_mode` operators that are made of others reach the seam whole: they keep their device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from windtunnel.session import Session
from windtunnel.trace.operation import Kind

CONVERSIONS = {
    "to dtype": lambda t: t.to(torch.float64),
    "to device and dtype": lambda t: t.to("cuda", torch.bool),
    "half": lambda t: t.half(),
    "type": lambda t: t.type(torch.float64),
    "type_as": lambda t: t.type_as(torch.zeros(1, device="cuda", dtype=torch.int64)),
    "reshape of a transpose": lambda t: t.T.reshape(4, 2),
    "einsum": lambda t: torch.einsum("ij,kj->ik", t, t),
    "pad": lambda t: nn.functional.pad(t, (0, 3)),
    "where": lambda t: torch.where(t > 0, t, 0.0),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_tensor_stays_on_its_device(session: Session, name: str) -> None:
    with torch.inference_mode():
        assert CONVERSIONS[name](torch.ones(2, 4, device="cuda")).device == torch.device("cuda", 0)


def test_the_host_waits_for_an_item(session: Session) -> None:
    with torch.inference_mode():
        torch.ones(1, device="cuda").item()
    assert [row.signature.name for row in session.trace if row.kind == Kind.SYNCHRONIZE] == [
        "aten::_local_scalar_dense"
    ]


def test_a_mixture_of_devices_is_refused(session: Session) -> None:
    with torch.inference_mode(), pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        nn.functional.linear(torch.ones(2, 4, device="cuda"), torch.ones(3, 4))


def test_it_launches_the_kernels_that_no_grad_launches(session: Session) -> None:
    layer = nn.Sequential(nn.Conv1d(3, 8, 1), nn.Linear(16, 8), nn.LayerNorm(8), nn.GELU(), nn.Softmax(-1)).cuda()
    data = torch.ones(2, 3, 16, device="cuda")
    names: list[list[str]] = []
    for mode in (torch.no_grad, torch.inference_mode):
        start = len(session.trace)
        with mode():
            layer(data)
        names.append([row.signature.name for row in list(session.trace)[start:] if row.kind == Kind.KERNEL])
    assert names[1] == names[0]
    assert "aten::addmm" in names[1]


def test_conjugate_views_inside_composites_are_resolved(session: Session) -> None:
    x = torch.randn(4, 4, dtype=torch.complex64)
    expected = torch.fft.hfft2(x), torch.vdot(x[0], x[1]), torch.linalg.vecdot(x, x.flip(0))
    with torch.inference_mode():
        y = x.cuda()
        found = torch.fft.hfft2(y), torch.vdot(y[0], y[1]), torch.linalg.vecdot(y, y.flip(0))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other)
