"""Operators that move elements take every dtype on CUDA, whatever the CPU's kernels take."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

INDEX = [[0, 1, 2, 0]]
MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gather": lambda x: x.gather(0, torch.tensor(INDEX, device=x.device)),
    "take_along_dim": lambda x: x.take_along_dim(torch.tensor(INDEX, device=x.device), 0),
    "index_select": lambda x: x.index_select(0, torch.tensor([2, 0], device=x.device)),
    "flip": lambda x: x.flip(0),
    "scatter": lambda x: torch.scatter(x, 0, torch.tensor(INDEX, device=x.device), x[2:]),
    "scatter_": lambda x: x.clone().scatter_(0, torch.tensor(INDEX, device=x.device), 3),
    "pixel_shuffle": lambda x: torch.pixel_shuffle(x.reshape(1, 4, 1, 3), 2),
    "channel_shuffle": lambda x: torch.channel_shuffle(x.reshape(1, 4, 3), 2),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32])
@pytest.mark.parametrize("name", MOVES)
def test_elements_move(name: str, dtype: torch.dtype, session: object) -> None:
    numbers = torch.arange(12).reshape(3, 4)
    on_device = MOVES[name](numbers.cuda().float().to(dtype))
    assert on_device.dtype is dtype
    assert on_device.is_cuda
    assert on_device.float().tolist() == MOVES[name](numbers.float().to(dtype).float()).tolist()


@pytest.mark.parametrize(
    ("function", "kernel"),
    [
        (torch.abs, "abs_cuda"),
        (lambda x: x * x, "mul_cuda"),
        (lambda x: x.roll(1), "roll_cuda"),
    ],
)
@pytest.mark.parametrize(("dtype", "called"), [(torch.float8_e4m3fn, "Float8_e4m3fn"), (torch.uint16, "UInt16")])
def test_what_an_h200_refused(
    function: Callable[[torch.Tensor], torch.Tensor], kernel: str, dtype: torch.dtype, called: str, session: object
) -> None:
    """As recorded in tests/conformance/hardware/2026-11-27-H200-answers.json.gz."""
    with pytest.raises(RuntimeError, match=f"\"{kernel}\" not implemented for '{called}'"):
        function(torch.ones(4, device="cuda").to(dtype))
