"""Programs that put constructors of their own in the place of PyTorch's, so that modules are made on their device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

import windtunnel


@contextmanager
def made_on(device: str, dtype: torch.dtype) -> Iterator[None]:
    """What nanotron's `init_on_device_and_dtype` and accelerate's `init_on_device` do."""

    def patched(function):
        return lambda *args, **kwargs: function(*args, **kwargs | {"device": device, "dtype": dtype})

    stock = {name: getattr(torch, name) for name in ("empty", "zeros", "ones", "full")}
    for name, function in stock.items():
        setattr(torch, name, patched(function))
    try:
        yield
    finally:
        for name, function in stock.items():
            setattr(torch, name, function)


def results(device: str) -> list[Tensor]:
    x = torch.ones(8, 8)
    q = torch.randn(1, 2, 16, 32, device=device, dtype=torch.float16)
    values, indices = torch.linspace(0, 1, 8, device=device).topk(3)
    norm = nn.LayerNorm(8)
    mixed = nn.functional.scaled_dot_product_attention(q, q, q)
    return [x, values, indices, norm.weight, norm(x), mixed, torch.linalg.svdvals(values.outer(values)), q.argmax(-1)]


@pytest.mark.parametrize("no_data", [False, True])
def test_what_operators_give_is_not_made_by_the_programs_constructors(no_data):
    with made_on("cpu", torch.bfloat16):
        wanted = [(one.dtype, one.shape, one.stride()) for one in results("cpu")]
    with windtunnel.emulate("H100", no_data=no_data):
        with made_on("cuda", torch.bfloat16):
            found = results("cuda")
            replaced = torch.empty
        assert torch.empty is not replaced
        assert [(one.dtype, one.shape, one.stride()) for one in found] == wanted
        assert {one.device.type for one in found} == {"cuda"}
