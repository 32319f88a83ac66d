"""Sums and products of half precision: which round each step on CUDA, and which once.

Expected: the kernels' C++ (`half_sums` and `pooled` name the files), sums of ones that stop where one more is lost, and
the number that pytorch/pytorch#122024 prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from windtunnel.session import Session

Tensor = torch.Tensor
MANY = 8192
HALVES = pytest.mark.parametrize(
    ("dtype", "stuck"), [(torch.float16, 2048.0), (torch.bfloat16, 256.0)], ids=["float16", "bfloat16"]
)


@contextmanager
def deterministic() -> Iterator[None]:
    """Algorithms in a fixed order."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def ones(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.ones(shape, dtype=dtype, device="cuda")


def nowhere(*shape: int) -> Tensor:
    """Indices that all point to the first place."""
    return torch.zeros(shape, dtype=torch.int64, device="cuda")


def gradient(function: Callable[[Tensor], Tensor], given: Tensor) -> Tensor:
    given.requires_grad_()
    function(given).sum().backward()
    assert given.grad is not None
    return given.grad


ATOMICS: dict[str, Callable[[torch.dtype], Tensor]] = {
    "scatter_add": lambda d: torch.zeros(1, dtype=d, device="cuda").scatter_add(0, nowhere(MANY), ones(MANY, dtype=d)),
    "scatter_add_": lambda d: torch.zeros(1, dtype=d, device="cuda").scatter_add_(
        0, nowhere(MANY), ones(MANY, dtype=d)
    ),
    "scatter_reduce": lambda d: torch.zeros(2, 1, dtype=d, device="cuda").scatter_reduce(
        1, nowhere(2, MANY), ones(2, MANY + 1, dtype=d), "sum"
    ),
    "scatter": lambda d: torch.zeros(1, dtype=d, device="cuda").scatter(
        0, nowhere(MANY), ones(MANY, dtype=d), reduce="add"
    ),
    "of a number": lambda d: torch.zeros(1, dtype=d, device="cuda").scatter(0, nowhere(MANY), 1.0, reduce="add"),
    "gather's gradient": lambda d: gradient(lambda x: x.gather(0, nowhere(MANY)), ones(1, dtype=d)),
    "index_add": lambda d: torch.zeros(1, dtype=d, device="cuda").index_add(0, nowhere(MANY), ones(MANY, dtype=d)),
    "index_add of rows": lambda d: torch.zeros(1, 3, dtype=d, device="cuda").index_add(
        0, nowhere(MANY), ones(MANY, 3, dtype=d)
    ),
    "index_select's gradient": lambda d: gradient(lambda x: x.index_select(1, nowhere(MANY)), ones(3, 1, dtype=d)),
    "interpolation's gradient": lambda d: gradient(
        lambda x: F.interpolate(x, (64, 128), mode="bilinear", align_corners=True), ones(2, 2, 1, 1, dtype=d)
    ),
    "long slices": lambda d: torch.zeros(1, 33, dtype=d, device="cuda").index_put(
        (nowhere(MANY),), ones(MANY, 33, dtype=d), accumulate=True
    ),
    "bags' maxima": lambda d: gradient(lambda x: F.embedding_bag(nowhere(MANY, 1), x, mode="max"), ones(1, 4, dtype=d)),
}


@HALVES
@pytest.mark.parametrize("name", ATOMICS)
def test_atomics_round_each_step(session: Session, name: str, dtype: torch.dtype, stuck: float) -> None:
    found = ATOMICS[name](dtype)
    assert found.dtype is dtype
    assert torch.equal(found.cpu(), torch.full_like(found.cpu(), stuck))


ONCE: dict[str, Callable[[torch.dtype], Tensor]] = {
    "index_put": lambda d: torch.zeros(1, dtype=d, device="cuda").index_put(
        (nowhere(MANY),), ones(MANY, dtype=d), accumulate=True
    ),
    "a warp's slice": lambda d: torch.ops.aten.index_put_(
        torch.zeros(3, 1, 32, dtype=d, device="cuda"), [None, nowhere(MANY)], ones(3, MANY, 32, dtype=d), True
    ),
    "indexing's gradient": lambda d: gradient(lambda x: x[nowhere(MANY)], ones(1, 8, dtype=d)),
    "bags": lambda d: gradient(lambda x: F.embedding_bag(nowhere(MANY, 1), x, mode="sum"), ones(1, 4, dtype=d)),
    "entries": lambda d: torch.sparse_coo_tensor(nowhere(1, MANY), ones(MANY, 4, dtype=d), (1, 4)).coalesce().values(),
    "averages' gradient": lambda d: (
        gradient(lambda x: F.avg_pool2d(x, 64, 1), ones(1, 1, 127, 127, dtype=d))[0, 0, 63, 63] * MANY
    ),
}


@HALVES
@pytest.mark.parametrize("name", ONCE)
def test_sums_in_float32_round_once(session: Session, name: str, dtype: torch.dtype, stuck: float) -> None:
    found = ONCE[name](dtype)
    assert found.dtype is dtype
    assert torch.equal(found.cpu(), torch.full_like(found.cpu(), MANY))


def test_overlapping_windows_are_folded_in_float32(session: Session) -> None:
    found = F.fold(torch.ones(1, 4096, 65 * 65, dtype=torch.float16, device="cuda"), (128, 128), (64, 64))
    assert found.max().item() == 4096


@HALVES
@pytest.mark.parametrize("name", ["scatter_add", "scatter_reduce", "index_add"])
def test_deterministic_sums_go_by_index_put(session: Session, name: str, dtype: torch.dtype, stuck: float) -> None:
    with deterministic():
        found = ATOMICS[name](dtype)
    assert torch.equal(found.cpu(), torch.full_like(found.cpu(), MANY))


def test_a_mean_divides_by_a_count_in_half_precision(session: Session) -> None:
    values = torch.full((MANY,), 2.0, dtype=torch.float16, device="cuda")
    empty = torch.full((2,), 5.0, dtype=torch.float16, device="cuda")
    found = empty.scatter_reduce(0, nowhere(MANY), values, "mean", include_self=False)
    assert found.tolist() == [2.0, 5.0]  # 4,096 of 2,048


def test_a_product_by_atomics_rounds_each_step(session: Session) -> None:
    factors = torch.full((300,), 1.0078125, dtype=torch.bfloat16)
    expected = torch.ones((), dtype=torch.bfloat16)
    for factor in factors:
        expected = expected * factor
    found = torch.ones(1, dtype=torch.bfloat16, device="cuda").scatter_reduce(0, nowhere(300), factors.cuda(), "prod")
    assert found.item() == expected.item()


def test_prod_multiplies_in_float32(session: Session) -> None:
    factors = torch.full((2, 4000), 1.0009765625, dtype=torch.float16)
    exact = factors[0].double().prod().to(torch.float16).item()
    assert factors[0].cuda().prod().item() == exact
    assert factors.cuda().prod(1).tolist() == [exact, exact]
    assert factors.cuda().prod(1, dtype=torch.float32).dtype is torch.float32
    out = torch.empty(0, dtype=torch.float16, device="cuda")
    torch.prod(factors.cuda(), 1, out=out)
    assert out.tolist() == [exact, exact]


def test_an_index_out_of_range_is_an_assert(session: Session) -> None:
    target = torch.zeros(2, 3, dtype=torch.float16, device="cuda")
    target.scatter_add(1, torch.full((2, 1), 3, device="cuda"), torch.ones(2, 1, dtype=torch.float16, device="cuda"))
    with pytest.raises(torch.AcceleratorError, match="device-side assert"):
        torch.cuda.synchronize()


def test_other_places_and_dimensions_are_summed_as_on_the_cpu(session: Session) -> None:
    torch.manual_seed(0)
    target, source = torch.zeros(3, 4, 5, dtype=torch.float16), torch.randn(3, 4, 5).half()
    for dim, size in enumerate(target.shape):
        index = torch.stack([torch.randperm(size)[:3] for _ in range(60)]).view(-1)[:36].view(3, 3, 4)
        index = index.argsort(dim) if dim != 2 else index[..., :3].argsort(dim)
        expected = target.scatter_add(dim, index, source)
        assert torch.equal(
            target.cuda().mT.contiguous().mT.scatter_add(dim, index.cuda(), source.cuda()).cpu(), expected
        )


@pytest.mark.parametrize(("size", "expected"), [(128, 2048.0), (64, 2048.0), (32, 1024.0)])
def test_bicubic_gradients_stop_as_reported(session: Session, size: int, expected: float) -> None:
    """pytorch/pytorch#104157."""
    given = torch.randn(2, 2, 1, 1, dtype=torch.float16, device="cuda")
    found = gradient(lambda x: F.interpolate(x, (size, size), mode="bicubic", align_corners=True), given)
    assert found.flatten().tolist() == [expected] * 4


@pytest.mark.parametrize("options", [{"scale_factor": 2.3}, {"size": 4}, {"scale_factor": 3, "align_corners": True}])
@pytest.mark.parametrize(("mode", "dims"), [("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3)])
def test_neighbours_of_interpolations_are_the_cpus(
    session: Session, mode: str, dims: int, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    given = torch.randn(2, 3, *(5, 7, 3)[:dims]).half()
    exact = gradient(lambda x: F.interpolate(x, mode=mode, **options).sin(), given.clone().double())
    found = gradient(lambda x: F.interpolate(x, mode=mode, **options).sin(), given.clone().cuda())
    torch.testing.assert_close(found.cpu().double(), exact, rtol=0.01, atol=0.03)


def test_bins_are_found_by_one_division(session: Session) -> None:
    """pytorch/pytorch#87657: `getBin` of SummaryOps.cu, in float32."""
    torch.manual_seed(0)
    values = torch.rand(100_000)
    found = torch.histc(values.cuda(), bins=7, min=0.1, max=0.9)
    least, most = torch.tensor(0.1), torch.tensor(0.9)
    inside = values[(values >= least) & (values <= most)]
    expected = ((inside - least) * 7 / (most - least)).int().clamp(max=6).bincount(minlength=7)
    assert found.dtype is torch.float32
    assert found.tolist() == expected.tolist()
    assert torch.histc(torch.full((3,), 2.0).cuda(), 4).tolist() == [0.0, 0.0, 3.0, 0.0]


def test_an_index_outside_its_window_adds_to_nothing(session: Session) -> None:
    torch.manual_seed(-123975)
    grad, given = torch.randn(256, 64, 56, 56), torch.empty(256, 64, 112, 112)
    indices = torch.ones(256, 64, 56, 56, dtype=torch.int64)
    torch.randn(given.shape, out=given)
    found = torch.ops.aten.max_pool2d_with_indices_backward(
        grad.cuda(), given.cuda(), [3, 3], [2, 2], [1, 1], [1, 1], False, indices.cuda()
    )
    assert round(found.max().item(), 4) == 6.2239


def test_indices_of_a_pooling_lie_in_its_windows(session: Session) -> None:
    torch.manual_seed(0)
    given = torch.randn(2, 3, 17, 19)
    for options in ({"kernel_size": 3}, {"kernel_size": (3, 2), "stride": (1, 2), "padding": 1, "dilation": (2, 1)}):
        pooled = lambda x, options=options: F.max_pool2d(x, **options) ** 2  # noqa: E731
        expected = gradient(pooled, given.clone())
        assert torch.equal(gradient(pooled, given.clone().cuda()).cpu(), expected)


def test_addcmul_takes_its_number_in_64_bits(session: Session) -> None:
    """pytorch/pytorch#153210: CUDA gives a result where the CPU's kernel refuses the number."""
    first, second = torch.tensor([25527, -21905, 7], dtype=torch.int16), torch.tensor(-752003609, dtype=torch.int32)
    number = 988328483643648370
    found = torch.addcmul(torch.tensor(5).cuda(), first.cuda(), second.cuda(), value=number)
    wrapped = [(5 + number * a * int(second)) % (1 << 16) for a in first.tolist()]
    assert found.dtype is torch.int16
    assert found.tolist() == [n - (1 << 16) if n >= 1 << 15 else n for n in wrapped]
