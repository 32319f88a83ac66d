"""Layouts and dtypes beside dense floats: sparse, nested, quantized, eight-bit floats, complex numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from windtunnel.session import Session


def coo(device: str = "cuda") -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 2]]), [3.0, 4.0, 5.0], (2, 3), device=device)


def test_sparse_matrices_live_on_devices(session: Session) -> None:
    sparse = coo()
    dense = torch.ones(3, 4, device="cuda")
    for made in (sparse.t(), sparse.coalesce(), sparse * 2, sparse + sparse, sparse.clone(), sparse @ dense):
        assert made.is_cuda
    assert sparse.coalesce().values().is_cuda
    assert (sparse.t().to_dense() == sparse.to_dense().t()).all()
    assert torch.cuda.memory_allocated() > 0


def test_sparse_matrices_move(session: Session) -> None:
    there = coo("cpu").to("cuda:1")
    assert str(there.device) == "cuda:1"
    assert str(there.coalesce().indices().device) == "cuda:1"
    assert there.cpu().device.type == "cpu"
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.sparse.mm(there, torch.ones(3, 4, device="cuda:0"))


def test_sparse_gradients(session: Session) -> None:
    matrix = torch.eye(3, device="cuda").to_sparse().requires_grad_()
    dense = torch.ones(3, 4, device="cuda", requires_grad=True)
    torch.sparse.mm(matrix, dense).sum().backward()
    assert matrix.grad is not None
    assert matrix.grad.is_cuda
    assert matrix.grad.is_sparse
    assert dense.grad is not None
    assert dense.grad.is_cuda


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr])
def test_compressed_matrices(session: Session, layout: torch.layout) -> None:
    size = (2, 2) if layout is torch.sparse_bsr else None
    dense = torch.eye(4, device="cuda")
    sparse = dense.to_sparse(layout=layout, blocksize=size)
    assert sparse.is_cuda
    assert sparse.values().is_cuda
    assert torch.equal(sparse.cpu().cuda().to_dense(), dense)
    assert not sparse.cpu().is_cuda


def test_nested_tensors(session: Session) -> None:
    parts = [torch.ones(2, 3), torch.ones(4, 3)]
    nested = torch.nested.nested_tensor(parts, device="cuda")
    layer = nn.Linear(3, 5).cuda()
    assert nested.is_cuda
    assert layer(nested).is_cuda
    assert [part.is_cuda for part in nested.unbind()] == [True, True]
    assert torch.nested.to_padded_tensor(nested, 0.0).shape == (2, 4, 3)
    assert torch.cuda.memory_allocated() >= 18 * 4
    moved = torch.nested.nested_tensor(parts).to("cuda:1")
    assert str(moved.device) == "cuda:1"
    assert moved.cpu().device.type == "cpu"
    assert torch.nested.nested_tensor([part.cuda() for part in parts]).is_cuda


def test_a_sparse_tensor_hands_gradients_on_to_its_values(session: Session) -> None:
    indices = torch.tensor([[0, 1], [1, 0]], device="cuda")
    values = torch.tensor([2.0, 3.0], device="cuda", requires_grad=True)
    sparse = torch.sparse_coo_tensor(indices, values, (2, 2))
    torch.sparse.mm(sparse, torch.tensor([[1.0], [5.0]], device="cuda")).sum().backward()
    assert values.grad is not None
    assert values.grad.is_cuda
    assert values.grad.tolist() == [5.0, 1.0]


def test_quantized_tensors(session: Session) -> None:
    quantized = torch.quantize_per_tensor(torch.ones(3, device="cuda"), 0.1, 10, torch.qint8)
    assert quantized.is_cuda
    assert "device='cuda:0'" in repr(quantized)
    assert quantized.dequantize().is_cuda
    assert quantized.int_repr().is_cuda
    assert not quantized.cpu().is_cuda
    assert torch._int_mm(*[torch.ones(32, 32, dtype=torch.int8, device="cuda")] * 2).dtype == torch.int32


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bit_floats(session: Session, dtype: torch.dtype) -> None:
    small = torch.full((16, 16), 2.0, device="cuda").to(dtype)
    assert small.is_cuda
    assert small.element_size() == 1
    assert torch.cuda.memory_allocated() >= 256
    assert small.float().sum().item() == 512


def test_complex_numbers(session: Session) -> None:
    x = torch.ones(4, 4, dtype=torch.complex64, device="cuda", requires_grad=True)
    assert all(made.is_cuda for made in (x @ x, x.real, x.abs(), x.mH @ x, torch.view_as_real(x), torch.fft.fft(x)))
    (x.abs() ** 2).sum().backward()
    assert x.grad is not None
    assert x.grad.is_cuda
    assert torch.equal(x.detach().conj().cpu(), torch.ones(4, 4, dtype=torch.complex64))


def test_jagged_tensors(session: Session) -> None:
    parts = [torch.ones(2, 3), torch.ones(4, 3)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged).to("cuda")
    layer = nn.Linear(3, 5).cuda()
    out = layer(nested)
    assert out.is_cuda
    assert out.values().is_cuda
    out.values().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.is_cuda
    assert not nested.cpu().is_cuda


def test_attention_over_jagged_tensors(session: Session) -> None:
    parts = [torch.ones(length, 2, 4, device="cuda") for length in (2, 3)]
    heads = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    assert F.scaled_dot_product_attention(heads, heads, heads).is_cuda


def test_encoders_pack_padded_rows_into_nested_tensors(session: Session) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).cuda().eval()
    padding = torch.tensor([[False, False, True], [False, False, False]], device="cuda")
    with torch.no_grad():
        out = encoder(torch.rand(2, 3, 8, device="cuda"), src_key_padding_mask=padding)
    assert out.is_cuda
    assert out.shape == (2, 3, 8)


@pytest.mark.parametrize("there", ["cpu", "cuda:0", "cuda:1"])
@pytest.mark.parametrize("here", ["cpu", "cuda:0"])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_tensor_that_is_written_to_stays_where_it_is(
    session: Session, layout: torch.layout, here: str, there: str
) -> None:
    target, source = (torch.diag(torch.full((3,), v)).to_sparse(layout=layout) for v in (2.0, 3.0))
    target, source = target.to(here), source.to(there)
    target.copy_(source)
    parts = (
        (target._values(), target._indices()) if layout is torch.sparse_coo else (target.values(), target.col_indices())
    )
    assert {part.device for part in parts} == {torch.device(here)}
    assert target.to_dense().cpu().diag().tolist() == [3, 3, 3]


def test_a_sparse_summand_names_the_one_on_the_host(session: Session) -> None:
    sparse = coo()
    with pytest.raises(RuntimeError, match="add: expected 'self' to be a CUDA tensor, but got a CPU tensor"):
        torch.ones(2, 3) + sparse
    with pytest.raises(RuntimeError, match="add: expected 'other' to be a CUDA tensor, but got a CPU tensor"):
        torch.ones(2, 3, device="cuda") + sparse.cpu()


DEVICES_OF_PARTS = [
    (("cuda:0", "cpu", "cuda:0"), "Expected all tensors to be on the same device.*cuda:0 and cpu!"),
    (("cpu", "cpu", "cuda:0"), r"device of \w+_indices \(=cpu\) must match device of values \(=cuda:0\)"),
    (("cuda:0", "cuda:0", "cuda:1"), r"device of \w+_indices \(=cuda:0\) must match device of values \(=cuda:1\)"),
]


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
@pytest.mark.parametrize(("devices", "sentence"), DEVICES_OF_PARTS)
def test_the_parts_of_a_sparse_tensor_lie_on_one_device(
    session: Session, devices: tuple[str, ...], sentence: str, layout: torch.layout
) -> None:
    parts = [
        torch.tensor(part).to(device) for part, device in zip(([0, 1, 2], [0, 1], [1.0, 2.0]), devices, strict=True)
    ]
    with pytest.raises(RuntimeError, match=sentence):
        torch.sparse_compressed_tensor(*parts, (2, 2), layout=layout)
    assert torch.sparse_compressed_tensor(*parts, (2, 2), layout=layout, device="cuda:1").device.index == 1


def test_the_indices_of_a_sparse_tensor_lie_with_its_values(session: Session) -> None:
    values = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match="found at least two devices, cpu and cuda:0!"):
        torch.sparse_coo_tensor(torch.zeros(1, 2, dtype=torch.int64), values, (3,))
    assert torch.sparse_coo_tensor([[0, 1]], values, (3,)).device == values.device


def test_a_triangular_system_of_blocks_is_solved(session: Session) -> None:
    dense = torch.tensor([[2.0, 1.0, 3.0, 1.0], [0, 4, 1, 2], [0, 0, 5, 1], [0, 0, 0, 2]], dtype=torch.float64)
    sides = torch.arange(8, dtype=torch.float64).reshape(4, 2)
    matrix, given = dense.to_sparse_bsr((2, 2)).cuda(), sides.cuda()
    solution, factor = torch.triangular_solve(given, matrix)
    assert (solution.device, factor.numel()) == (given.device, 0)
    torch.testing.assert_close(solution.cpu(), torch.linalg.solve(dense, sides))
    out = torch.empty_like(given)
    torch.triangular_solve(given, matrix, out=(out, factor))
    assert torch.equal(out, solution)
    empty = torch.zeros(4, 4, dtype=torch.float64).to_sparse_bsr((2, 2)).cuda()
    assert torch.triangular_solve(given, empty).solution.isnan().all()


def test_sums_of_sparse_tensors_keep_every_entry_until_there_are_too_many(session: Session) -> None:
    sparse, host = coo(), coo("cpu")  # 3 entries at 3 places, of 6
    total = sparse + sparse
    assert total._nnz() == 6
    assert torch.equal(total.to_dense().cpu(), (host + host).to_dense())
    more = total + sparse
    assert more._nnz() == 3
    assert more.is_coalesced()
    assert torch.equal(torch.add(sparse, sparse, alpha=-2).to_dense().cpu(), -host.to_dense())
    sparse += coo()
    assert (sparse._nnz(), sparse._values().device) == (6, sparse.device)


def test_accumulated_sparse_gradients_keep_every_entry(session: Session) -> None:
    layer = nn.Embedding(100, 4, sparse=True, device="cuda")
    for _ in range(2):
        layer(torch.tensor([3, 3, 7], device="cuda")).sum().backward()
    assert layer.weight.grad._nnz() == 6
    assert layer.weight.grad.to_dense()[3].tolist() == [4, 4, 4, 4]
