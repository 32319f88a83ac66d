"""Lists of a device's numbers, as in `torch.tensor(losses)`: C++ asks each tensor for its number, below any mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import windtunnel
from windtunnel.trace.operation import Kind

CONSTRUCTORS: dict[str, Callable[[list[object]], torch.Tensor]] = {
    "tensor": lambda data: torch.tensor(data),
    "nested": lambda data: torch.tensor([data, data[::-1]]),
    "as_tensor": lambda data: torch.as_tensor(data),
    "Tensor": lambda data: torch.Tensor(data),
    "FloatTensor": lambda data: torch.FloatTensor(data),
    "new_tensor": lambda data: torch.ones(1).new_tensor(data),
    "device": lambda data: torch.tensor(data, device="cuda").cpu(),
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_host_waits_for_each(name: str, dtype: torch.dtype) -> None:
    make = CONSTRUCTORS[name]
    expected = CONSTRUCTORS["tensor" if name == "device" else name](
        [torch.tensor(1.5, dtype=dtype), 2, torch.tensor(0.25, dtype=dtype)]
    )
    with windtunnel.emulate("A100") as session:
        data = [torch.tensor(1.5, dtype=dtype, device="cuda"), 2, torch.tensor(0.25, dtype=dtype, device="cuda")]
        before = waits(session)
        made = make(data)
        waited = waits(session) - before
    assert made.dtype == expected.dtype
    assert made.equal(expected)
    assert waited >= (4 if name == "nested" else 2)


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_without_data_they_are_assumed(name: str) -> None:
    """Megatron-Core's local norm of gradients is `torch.norm(torch.tensor(norms))`."""
    with windtunnel.emulate("A100", no_data=True):
        make = CONSTRUCTORS[name]
        assert make([torch.ones(4, device="cuda").sum(), 2]).shape[-1] == 2


def waits(session: windtunnel.Session) -> int:
    return sum(row.kind == Kind.SYNCHRONIZE for row in session.trace)
