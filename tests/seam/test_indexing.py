"""What indexing a device tensor by host tensors, lists and arrays copies and waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import windtunnel
from windtunnel.session import Session
from windtunnel.trace.operation import Kind

Index = Callable[[torch.Tensor], Any]


@pytest.fixture(autouse=True)
def session() -> Iterator[Session]:
    with windtunnel.emulate("V100") as session:
        yield session


def copies(session: Session, run: Callable[[], Any]) -> list[int]:
    """The bytes of the copies to the device that `run` makes the host wait for."""
    since = len(session.trace)
    run()
    rows = list(session.trace.since(since))
    sizes = [row.value for row in rows if row.kind is Kind.COPY and row.signature.name.startswith("Memcpy HtoD")]
    assert len([row for row in rows if row.kind is Kind.SYNCHRONIZE]) >= len(sizes)
    return sizes


HOST: dict[str, tuple[Index, list[int]]] = {
    "tensor": (lambda x: x[torch.tensor([0, 1])], [16]),
    "two tensors": (lambda x: x[torch.tensor([0, 1]), torch.tensor([1, 1])], [16, 16]),
    "list": (lambda x: x[[0, 1, 2]], [24]),
    "array": (lambda x: x[np.array([2, 0])], [16]),
    "mask": (lambda x: x[torch.tensor([True, False, True])], [16]),
    "mask of two dimensions": (lambda x: x[torch.eye(3, dtype=torch.bool)], [24, 24]),
    "write of a tensor": (lambda x: x.__setitem__(torch.tensor([0]), torch.ones(1, 3, device="cuda")), [8]),
    "write of a number": (lambda x: x.__setitem__(torch.tensor([0]), 2.0), [4, 8]),
    "accumulating write": (lambda x: x.index_put_((torch.tensor([0]),), x[0] + 1, accumulate=True), [8]),
    "number and slice": (lambda x: x[torch.tensor(1), 0:2], []),
}


@pytest.mark.parametrize("name", HOST)
def test_what_lies_on_the_host_is_copied_first(session: Session, name: str) -> None:
    index, sizes = HOST[name]
    x = torch.arange(9.0, device="cuda").view(3, 3)
    want = torch.arange(9.0).view(3, 3)
    got = copies(session, lambda: index(x))
    assert got == sizes
    if name != "accumulating write" and "write" not in name:
        assert torch.equal(index(x).cpu(), index(want))


def test_indices_on_the_device_cost_no_copy(session: Session) -> None:
    x, numbers = torch.ones(3, 3, device="cuda"), torch.tensor([0, 1], device="cuda")
    mask = torch.tensor([True, False, True], device="cuda")
    assert copies(session, lambda: x[numbers]) == []
    assert copies(session, lambda: x[mask]) == []
    assert copies(session, lambda: x.__setitem__(mask, 2.0)) == []
    assert copies(session, lambda: x.__setitem__(numbers, 3.0)) == [4]
    assert x[:, 0].tolist() == [3, 3, 2]


def test_values_on_the_host_are_refused_as_on_cuda() -> None:
    x, numbers = torch.ones(3, 3, device="cuda"), torch.tensor([0, 1], device="cuda")
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu!"):
        x[numbers] = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="expected device cuda:0 but got device cpu for value tensor"):
        x.index_put_((numbers,), torch.ones(2, 3), accumulate=True)


def test_a_gradient_goes_through_a_host_index(session: Session) -> None:
    x = torch.ones(3, device="cuda", requires_grad=True)
    picked = x[torch.tensor([0, 0, 2])].sum()
    assert copies(session, picked.backward) == [24]
    assert x.grad.tolist() == [2, 0, 1]


def test_a_capture_refuses_a_host_index() -> None:
    x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="capture"), torch.cuda.graph(graph):
        x[torch.tensor([0])]


def test_allclose_and_histc_wait_for_what_they_read(session: Session) -> None:
    x = torch.ones(3, device="cuda")
    since = len(session.trace)
    assert torch.allclose(x, x)
    torch.histc(x)
    waits = [row.signature.name for row in session.trace.since(since) if row.kind is Kind.SYNCHRONIZE]
    assert waits == ["aten::allclose", "aten::histc", "aten::histc"]
    since = len(session.trace)
    torch.histc(x, 10, 0, 2)
    torch.multinomial(x, 2)
    assert not [row for row in session.trace.since(since) if row.kind is Kind.SYNCHRONIZE]


@pytest.mark.parametrize("levels", [1, 2])
def test_a_number_is_written_through_indices_inside_vmap(levels: int, session: Session) -> None:
    """`create_block_mask` of flex attention does so."""

    def marked(columns: torch.Tensor) -> torch.Tensor:
        row = columns.new_zeros(4)
        row[columns] = 1
        return row

    work = marked
    for _ in range(levels):
        work = torch.func.vmap(work)
    columns = torch.tensor([[0, 2], [1, 3]]).reshape(*[1] * (levels - 1), 2, 2).cuda()
    found = work(columns)
    assert found.device.type == "cuda"
    assert found.reshape(2, 4).tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]]


@pytest.mark.parametrize("index", [[0, 2], torch.tensor([0, 2]), torch.tensor([True, False, True])])
def test_a_number_on_a_device_is_written_into_a_host_tensor(session: Session, index: Any) -> None:
    """`_index_put_impl_` brings a value without dimensions to the tensor's device; any other is an error."""
    losses, loss = torch.zeros(3, device="cpu"), torch.tensor(2.0, device="cuda")
    since = len(session.trace)
    losses[index] = loss
    assert any("DtoH" in row.signature.name for row in session.trace.since(since))
    assert losses.tolist() == [2.0, 0.0, 2.0]
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu!"):
        losses[index] = loss.expand(2)
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        losses[torch.tensor([0, 2], device="cuda")] = loss
