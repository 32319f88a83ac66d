"""Operators over lists: one kernel where CUDA has one for the lists, one operator a tensor elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from windtunnel.session import Session
from windtunnel.trace.operation import Kind


def kernels(session: Session, first: int) -> list[str]:
    """The names of the kernels since a record."""
    return [record.signature.name for record in list(session.trace)[first:] if record.kind == Kind.KERNEL]


def listed(*places: str, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.ones(2, 3, device=place, dtype=dtype) for place in places]


@pytest.mark.parametrize(
    ("work", "count"),
    [
        (lambda a: torch._foreach_add(a, a), 1),
        (lambda a: torch._foreach_add(a, 2.0), 1),
        (lambda a: torch._foreach_exp(a), 1),
        (lambda a: torch._foreach_norm(a, 2), 1),
        (lambda a: torch._foreach_norm(a, 3), 2),
        (lambda a: torch._foreach_add(a, [tensor.t().contiguous().t() for tensor in a]), 4),  # two of them copies
        (lambda a: torch._foreach_add(a, [tensor.double() for tensor in a]), 4),  # two of them conversions
    ],
)
def test_what_has_a_kernel_for_all_is_one(session: Session, work, count: int) -> None:
    tensors = listed("cuda", "cuda")
    before = len(session.trace)
    results = work(tensors)
    assert len(kernels(session, before)) == count
    assert all(result.is_cuda for result in results)


def test_a_call_like_an_earlier_one_does_the_same_again(session: Session) -> None:
    a, b = listed("cuda", "cuda"), listed("cuda", "cuda")
    scale = torch.full((), 2.0, device="cuda")
    for _ in range(200):  # beyond those that are watched
        torch._foreach_add_(a, 0.0)
    told = []
    for _ in range(3):
        roots = norms = None
        before = len(session.trace)
        held = torch.cuda.memory_allocated()
        roots = torch._foreach_sqrt(a)
        assert torch.cuda.memory_allocated() == held + 1024
        norms = torch._foreach_norm(roots, 2.0)
        assert len(torch._foreach_norm(roots, 3.0)) == 2
        torch._foreach_mul_(b, scale)
        torch._foreach_addcdiv_(b, a, roots, [1.0, 2.0])
        told.append([(*record[:4], record.end_ns - record.start_ns) for record in list(session.trace)[before:]])
    assert told[1] == told[2]
    one_by_one = ["aten::linalg_vector_norm"] * 2
    assert [signature.name for _, _, signature, *_ in told[1]] == [
        "aten::_foreach_sqrt", "aten::_foreach_norm", *one_by_one, "aten::_foreach_mul_", "aten::_foreach_addcdiv_",
    ]  # fmt: skip
    assert [float(norm) for norm in norms] == pytest.approx([6**0.5] * 2)
    assert [float(tensor[0, 0]) for tensor in b] == [15.0, 22.0]


def test_what_lies_or_counts_otherwise_is_looked_at_again(session: Session) -> None:
    a = listed("cuda", "cuda")
    whole = [tensor.long() for tensor in a]
    for work, count in (
        (lambda: torch._foreach_add(a, 1.0), 1),
        (lambda: torch._foreach_add(whole, 1), 1),
        (lambda: torch._foreach_add(whole, 1.0), 2),
        (lambda: torch._foreach_add(a, [1.0, 2.0]), 1),
        (lambda: torch._foreach_add(a, [a[0], a[0].t().contiguous().t()]), 3),  # one of them a copy
        (lambda: torch._foreach_add(a, a), 1),
    ):
        for _ in range(3):
            before = len(session.trace)
            work()
            assert len(kernels(session, before)) == count
    with pytest.raises(RuntimeError, match="must have the same number of tensors"):
        torch._foreach_add(a, a[:1])


def test_whole_numbers_are_divided_one_by_one(session: Session) -> None:
    tensors = listed("cuda", "cuda", dtype=torch.int64)
    before = len(session.trace)
    results = torch._foreach_div(tensors, 2)
    assert kernels(session, before) == ["aten::div", "aten::div"]
    assert [result.dtype for result in results] == [torch.float32] * 2


def test_lists_on_several_devices_go_tensor_by_tensor(session: Session) -> None:
    first, second = listed("cuda:0", "cuda:1", "cpu"), listed("cuda:0", "cuda:1", "cpu")
    results = torch._foreach_mul(first, second)
    assert [str(result.device) for result in results] == ["cuda:0", "cuda:1", "cpu"]
    torch._foreach_add_(first, 1)
    assert [float(tensor.sum()) for tensor in first] == [12.0] * 3
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cuda:1!"):
        torch._foreach_add(listed("cuda:0"), listed("cuda:1"))


def test_a_number_that_decides_whether_there_is_a_kernel_is_looked_at_again(session: Session) -> None:
    tensors = listed("cuda", "cuda")
    for _ in range(300):  # beyond what is watched, so that a known form would be taken
        torch._foreach_norm(tensors, 2.0)
    before = len(session.trace)
    torch._foreach_norm(tensors, 3.0)
    torch._foreach_norm(tensors, 2.0)
    assert len(kernels(session, before)) == 3


def test_a_result_of_another_type_is_told_before_another_device(session: Session) -> None:
    """TensorIteratorBase::compute_types of aten/src/ATen/TensorIterator.cpp looks at the first operand first."""
    first, second = listed("cuda:0", dtype=torch.int8), listed("cuda:1", dtype=torch.int8)
    with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Char"):
        torch._foreach_div_(first, second)
    with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Char"):
        first[0].div_(second[0])
    for work in (lambda: torch._foreach_div(first, second), lambda: first[0].add_(second[0])):
        with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cuda:1!"):
            work()


@pytest.mark.parametrize("work", [torch._foreach_addcmul, torch._foreach_addcdiv_])
def test_a_tensor_of_scalars_lies_on_the_host(session: Session, work) -> None:
    """As in `convert_tensor_to_scalar_list`, aten/src/ATen/native/ForeachUtils.h."""
    one, two, three = (listed("cuda", "cuda") for _ in range(3))
    before = len(session.trace)
    results = work(one, two, three, torch.tensor([2.0, 3.0]))
    assert len(kernels(session, before)) == 1
    assert [tensor[0, 0].item() for tensor in results or one] == [3.0, 4.0]
    with pytest.raises(RuntimeError, match="Expected scalars to be on CPU, got cuda:0 instead"):
        work(one, two, three, torch.tensor([2.0, 3.0], device="cuda"))
    with pytest.raises(RuntimeError, match="Expected packed scalar Tensor to be of dimension 1"):
        work(one, two, three, torch.tensor(2.0))


def test_a_list_whose_tensors_have_no_tangents_is_scaled(session: Session) -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(3, device="cuda"), torch.ones(3, device="cuda"))
        tensors = [dual.clone(), torch.ones(3, device="cuda")]
        torch._foreach_add_(tensors, [torch.ones(3, device="cuda") for _ in tensors], alpha=2)
        tangents = [forward_ad.unpack_dual(tensor).tangent for tensor in tensors]
    assert tangents[1] is None
    assert tangents[0].tolist() == [1, 1, 1]
    assert tangents[0].is_cuda


def test_the_profiler_names_them_as_tools_expect(session: Session) -> None:
    tensors = listed("cuda", "cuda")
    with torch.profiler.profile() as profiler:
        torch._foreach_add(tensors, tensors)
    assert any("multi_tensor_apply_kernel" in event.key for event in profiler.key_averages())
