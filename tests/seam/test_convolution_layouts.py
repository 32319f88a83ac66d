"""cuDNN takes a convolution's operands in one layout: PyTorch copies those that lie otherwise before it.

Source: `determine_backend_memory_format` of aten/src/ATen/native/Convolution.cpp, cudnn/ConvShared.cpp.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import windtunnel
from windtunnel.session import Session
from windtunnel.trace.operation import Kind

LAST = torch.channels_last


def kernels(session: Session, begin: int = 0) -> list[str]:
    rows = list(session.trace)[begin:]
    return [row.signature.name.removeprefix("aten::") for row in rows if row.kind is Kind.KERNEL]


@pytest.mark.parametrize("no_data", [False, True])
@pytest.mark.parametrize(
    ("images", "weight", "copies"),
    [
        (torch.contiguous_format, torch.contiguous_format, 0),
        (LAST, LAST, 0),
        (torch.contiguous_format, LAST, 1),
        (LAST, torch.contiguous_format, 1),
    ],
)
def test_what_lies_otherwise_is_copied_first(
    images: torch.memory_format, weight: torch.memory_format, copies: int, no_data: bool
) -> None:
    with windtunnel.emulate("A100-SXM4-40GB", no_data=no_data) as session:
        x = torch.empty(2, 8, 6, 6, device="cuda").to(memory_format=images)
        w = torch.empty(4, 8, 3, 3, device="cuda").to(memory_format=weight)
        begin = len(session.trace)
        y = functional.conv2d(x, w)
        assert kernels(session, begin) == ["clone"] * copies + ["convolution"]
        assert y.is_contiguous(memory_format=LAST if copies or images is LAST else torch.contiguous_format)


def test_the_copy_takes_memory_while_it_is_used() -> None:
    with windtunnel.emulate("A100-SXM4-40GB", no_data=True):
        x = torch.empty(8, 64, 128, 128, device="cuda")
        conv = torch.nn.Conv2d(64, 64, 3, bias=False).cuda()
        taken = []
        for layout in (torch.contiguous_format, LAST):
            weight = conv.weight.detach().to(memory_format=layout)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            y = functional.conv2d(x, weight)
            taken.append(torch.cuda.max_memory_allocated() - before - y.numel() * 4)
        assert taken[1] - taken[0] >= 0.9 * x.numel() * 4


def test_gradients_copy_what_they_need() -> None:
    with windtunnel.emulate("A100-SXM4-40GB") as session:
        x = torch.rand(2, 8, 6, 6, device="cuda", requires_grad=True)
        w = torch.rand(4, 8, 3, 3, device="cuda").to(memory_format=LAST)
        y = functional.conv2d(x, w)
        grad = torch.ones_like(y)
        begin = len(session.trace)
        torch.autograd.grad(y, x, grad, retain_graph=True)
        assert kernels(session, begin) == ["convolution_backward"]  # only the weight's gradient needs the images
        w.requires_grad_()
        y = functional.conv2d(x.detach(), w)
        begin = len(session.trace)
        torch.autograd.grad(y, w, grad)
        assert kernels(session, begin) == ["clone", "convolution_backward"]


@pytest.mark.parametrize("no_data", [False, True])
def test_lines_that_lie_channels_last_stay_so(no_data: bool) -> None:
    with windtunnel.emulate("A100-SXM4-40GB", no_data=no_data):
        x = torch.ones(2, 10, 8, device="cuda").transpose(1, 2)
        y = functional.conv1d(x, torch.ones(4, 8, 3, device="cuda"))
        assert y.stride() == (32, 1, 4)
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            y.view(2, -1)


def test_values_are_those_of_one_layout() -> None:
    torch.manual_seed(0)
    x, w = torch.rand(2, 8, 10), torch.rand(4, 8, 3)
    wanted = functional.conv1d(x, w)
    with windtunnel.emulate("A100-SXM4-40GB"):
        lines = x.transpose(1, 2).contiguous().cuda().transpose(1, 2)
        torch.testing.assert_close(functional.conv1d(lines, w.cuda()).cpu(), wanted)
        halves = functional.conv1d(lines.half(), w.cuda().half())
        assert torch.equal(halves.cpu(), functional.conv1d(x.half().float(), w.half().float()).half())
        assert functional.conv1d(x.transpose(1, 2).contiguous().transpose(1, 2), w).is_contiguous()  # on the host


def test_double_precision_has_no_channels_last() -> None:
    with windtunnel.emulate("A100-SXM4-40GB") as session:
        x = torch.ones(2, 8, 6, 6, device="cuda", dtype=torch.float64)
        w = torch.ones(4, 8, 3, 3, device="cuda", dtype=torch.float64).to(memory_format=LAST)
        begin = len(session.trace)
        assert functional.conv2d(x, w).is_contiguous()
        assert kernels(session, begin) == ["clone", "convolution"]
