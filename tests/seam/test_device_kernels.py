"""Operators that CUDA has kernels for and the CPU has none."""

from __future__ import annotations

import pytest
import torch

from windtunnel.session import Session
from windtunnel.trace.operation import Kind

HAS_OUT_DTYPE = "dtype" in torch.ops.aten.mm.overloads()


def test_integers_are_counted(session: Session) -> None:
    x = torch.tensor([0, 1, 1, 3, 7], dtype=torch.int32, device="cuda")
    counts = torch.histc(x, bins=4, min=0, max=4)
    assert (counts.device.type, counts.dtype, counts.tolist()) == ("cuda", torch.int32, [1, 2, 0, 1])
    assert torch.histc(x, bins=2, out=torch.empty(0, dtype=torch.int32, device="cuda")).tolist() == [4, 1]


@pytest.mark.parametrize("name", ["mm", "bmm", "addmm", "baddbmm"] if HAS_OUT_DTYPE else [])
def test_products_of_halves_are_summed_in_float32(session: Session, name: str) -> None:
    shape = (2, 3, 3) if "bmm" in name else (3, 3)
    factors = [torch.full(shape, 1.001, device="cuda").half() for _ in range(2)]
    added = [torch.ones(shape, device="cuda")] if "add" in name else []
    product = getattr(torch, name)
    wanted = product(*added, *(factor.float() for factor in factors))
    found = product(*added, *factors, out_dtype=torch.float32)
    assert (found.dtype, found.is_cuda) == (torch.float32, True)
    assert torch.equal(found, wanted)
    out = torch.empty_like(found)
    assert product(*added, *factors, out_dtype=torch.float32, out=out) is out
    assert torch.equal(out, wanted)
    with pytest.raises(RuntimeError, match="out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs"):
        product(*added, *(factor.float() for factor in factors), out_dtype=torch.float16)


@pytest.mark.parametrize("name", ["mm"] if HAS_OUT_DTYPE else [])
def test_a_graph_replays_them(session: Session, name: str) -> None:
    x, counted = torch.ones(4, 4, device="cuda").half(), torch.tensor([1, 1, 2], device="cuda")
    x @ x  # makes cuBLAS's handle, which a capture may not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = getattr(torch, name)(x, x, out_dtype=torch.float32)
        counts = torch.histc(counted, bins=2, min=1, max=2)
    x.fill_(2)
    counted.fill_(2)
    graph.replay()
    assert y[0, 0].item() == 16
    assert counts.tolist() == [0, 3]


def test_histc_waits_only_where_it_has_no_bounds(session: Session) -> None:
    x = torch.zeros(3, device="cuda")
    waits = []
    for high in (4, 0):
        before = len(session.trace.rows)
        torch.histc(x, bins=4, max=high)
        waits.append(sum(row.kind == Kind.SYNCHRONIZE for row in list(session.trace)[before:]))
    assert waits == [0, 2]


@pytest.mark.parametrize("precision", ["tf32", "ieee"] if hasattr(torch.backends, "fp32_precision") else [])
def test_precision_may_be_chosen_by_the_newer_switches_alone(session: Session, precision: str) -> None:
    """PyTorch's older switches refuse to answer then (`Context::allowTF32CuBLAS` of aten/src/ATen/Context.cpp)."""
    before = torch.backends.fp32_precision
    torch.backends.fp32_precision = precision
    try:
        out = torch.nn.Linear(4, 4).cuda()(torch.ones(2, 4, device="cuda"))
    finally:
        torch.backends.fp32_precision = before
    assert out.is_cuda
