"""Memory of a GPU whose allocator is not there: a number too high, or CUDA that nobody has initialized.

Expected: pytorch/pytorch#72404, #24463, intel/auto-round#1780 ("Invalid device argument : did you call init?", where
the number is written as a character that shows nothing). A text of C++ ends at the character of number 0.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import windtunnel
from windtunnel.session import Session

cuda = torch.cuda
FUNCTIONS = (
    cuda.memory_allocated, cuda.max_memory_reserved, cuda.memory_stats, cuda.memory_summary,
    cuda.reset_peak_memory_stats, cuda.reset_accumulated_memory_stats,
)  # fmt: skip


def said(call: Callable[..., object], *args: object) -> str:
    with pytest.raises(RuntimeError) as caught:
        call(*args)
    return str(caught.value).split("\n")[0]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("index", [5, torch.device("cuda:5"), -2], ids=str)
def test_a_gpu_that_is_not_there_has_none(session: Session, function: Callable[..., object], index: object) -> None:
    torch.ones(1, device="cuda")
    shown = chr(5) if index != -2 else chr(254)
    assert said(function, index) == f"Invalid device argument {shown}: did you call init?"


def test_a_share_of_a_gpu_that_is_not_there(session: Session) -> None:
    said_of_it = said(cuda.set_per_process_memory_fraction, 0.5, 5)
    assert said_of_it == f"Allocator not initialized for device {chr(5)}: did you call init?"


@pytest.mark.parametrize("function", FUNCTIONS[-2:], ids=lambda function: function.__name__)
def test_before_cuda_is_initialized_there_is_none(function: Callable[..., object]) -> None:
    with windtunnel.emulate("2xV100"):
        assert cuda.memory_allocated(0) == 0
        assert said(function, 0) == "Invalid device argument "
        assert said(function, "cuda:1") == f"Invalid device argument {chr(1)}: did you call init?"
        function()
        function(1)
