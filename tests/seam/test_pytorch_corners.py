"""Corners of PyTorch's CUDA surface that its own tests look into, one small case each."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.cuda.comm
from torch.autograd import Function

import windtunnel
from windtunnel.seam.torch.tags import VERSION


@pytest.fixture(autouse=True)
def two_gpus() -> Iterator[None]:
    with windtunnel.emulate("2xV100"):
        yield


def test_type_as_goes_to_the_other_tensors_device() -> None:
    here, there = torch.ones(2), torch.ones(2, dtype=torch.float64, device="cuda:1")
    moved = here.type_as(there)
    assert (moved.device, moved.dtype) == (torch.device("cuda", 1), torch.float64)
    assert there.type_as(here).is_cpu


def test_a_default_tensor_type_is_not_printed_with_its_device() -> None:
    x = torch.ones(2, device="cuda")
    torch.set_default_tensor_type(torch.cuda.FloatTensor)
    try:
        assert repr(x) == "tensor([1., 1.])"
        assert repr(x.cpu()) == "tensor([1., 1.], device='cpu')"
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert repr(x) == "tensor([1., 1.], device='cuda:0')"


def test_a_default_device_does_not_reach_what_the_emulation_makes_for_itself() -> None:
    with torch.device("cuda"):
        x = torch.zeros(2)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x += 1
        graph.replay()
        assert x.tolist() == [1, 1]
        assert copy.deepcopy(x.untyped_storage()).device == x.device


@pytest.mark.parametrize("way", [lambda t: t, lambda t: t.untyped_storage()])
def test_set_refuses_memory_of_another_device(way: Any) -> None:
    here, there = torch.ones(2), torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match='on device "cpu" to a storage on different device "cuda:0"'):
        here.set_(way(there))
    with pytest.raises(RuntimeError, match='on device "cuda:0" to a storage on different device "cpu"'):
        there.set_(way(here))


def test_new_takes_a_device() -> None:
    x = torch.ones(2, device="cuda:0")
    assert x.new([0, 1], device=1).device == torch.device("cuda", 1)
    assert x.new(2, 3).device == x.device
    with pytest.raises(RuntimeError, match="legacy constructor expects device type: cuda but device type: cpu"):
        x.new(2, device="cpu")


def test_more_than_an_exabyte_is_refused_before_the_device_is_asked() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate more than 1EB memory"):
        torch.empty(1 << 60, dtype=torch.int8, device="cuda")


def test_a_transform_of_repeated_elements() -> None:
    x = torch.randn(8, device="cuda", dtype=torch.complex128)
    wide = x.expand(3, 8)
    assert torch.allclose(torch.fft.fftn(wide, dim=(1,)), torch.fft.fft(x).expand(3, 8))


@pytest.mark.parametrize("function", ["fft", "rfft", "irfft", "hfft", "ifft2", "rfftn"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.complex32])
def test_half_precision_is_transformed_where_sizes_are_powers_of_two(function: str, dtype: torch.dtype) -> None:
    if dtype is torch.complex32 and function.startswith("rfft"):
        dtype = torch.float16
    transform = getattr(torch.fft, function)
    x = torch.rand(8, 8, device="cuda").to(dtype)
    size = {"irfft": 8, "hfft": 8}.get(function)
    wide = transform(x.to(torch.complex64 if dtype.is_complex else torch.float32), size)
    out = transform(x, size)
    assert out.element_size() * 2 == wide.element_size()
    assert torch.allclose(out.to(wide.dtype), wide, atol=0.05)
    with pytest.raises(RuntimeError, match="sizes are powers of two"):
        transform(x[:6, :6], size and 6)


@pytest.mark.parametrize("text", ["cuda:2 2", "cuda:x"])
def test_a_wrong_device_string_is_pytorchs_error(text: str) -> None:
    with pytest.raises(RuntimeError, match="Invalid device string"):
        torch.device(text)


class Split(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return x * 1, x.to("cuda:1") * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.seen.append([str(gradient.device) for gradient in gradients])
        return gradients[0] + gradients[1].to("cuda:0")


def test_zeros_for_an_output_without_gradient_lie_where_the_output_does(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(torch.autograd.function.FunctionCtx, "seen", seen, raising=False)
    x = torch.ones(2, device="cuda", requires_grad=True)
    first, _ = Split.apply(x)
    first.sum().backward()
    assert seen == [["cuda:0", "cuda:1"]]
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1]


def test_events_of_two_devices_have_no_time_between_them() -> None:
    events = []
    for device in range(2):
        with torch.cuda.device(device):
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
            events[-1].synchronize()
    with pytest.raises(RuntimeError, match="invalid resource handle"):
        events[0].elapsed_time(events[1])


def test_empty_tensors_are_broadcast_with_the_others() -> None:
    tensors = [torch.empty(0, device="cuda"), torch.ones(3, device="cuda")]
    copies = torch.cuda.comm.broadcast_coalesced(tensors, (0, 1))
    assert [t.device.index for t in copies[1]] == [1, 1]


def test_autocast_does_not_keep_the_tensors_of_a_graph_tree() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2, device="cuda"))
    torch._C._set_cached_tensors_enabled(True)
    torch._C._add_cached_tensor(weight)
    try:
        with torch.autocast("cuda"):
            assert not torch.is_autocast_cache_enabled() or torch.mm(weight, weight).dtype is torch.float16
            assert weight.data_ptr() not in [known[0].data_ptr() for known in _autocast_cache().values()]
    finally:
        torch._C._remove_cached_tensor(weight)
        torch._C._set_cached_tensors_enabled(False)


def _autocast_cache() -> dict[int, Any]:
    from windtunnel.seam.torch.install import ACTIVE

    return dict(ACTIVE[-1].autocast.cache)


def test_registered_host_memory_is_pinned() -> None:
    x = torch.ones(20)
    cudart = torch.cuda.cudart()
    assert cudart.cudaHostRegister(x.data_ptr(), x.nbytes, 0) == 0
    assert x.is_pinned()
    assert x[3:].is_pinned()
    assert cudart.cudaHostUnregister(x.data_ptr()) == 0
    assert not x.is_pinned()
    assert cudart.cudaHostUnregister(x.data_ptr()) != 0


def test_a_raw_stream_becomes_an_external_stream() -> None:
    cudart = torch.cuda.cudart()
    handle = ctypes.c_ulonglong(0)
    assert cudart.cudaStreamCreate(ctypes.addressof(handle)) == 0
    stream = torch.cuda.ExternalStream(handle.value)
    assert stream.cuda_stream == handle.value
    with torch.cuda.stream(stream):
        x = torch.ones(2, device="cuda")
    assert x.tolist() == [1, 1]
    assert cudart.cudaStreamDestroy(handle.value) == 0
    assert cudart.cudaStreamDestroy(1) != 0


def test_pinned_memory_is_used_again_at_its_address() -> None:
    x = torch.tensor([1.0, 2.0]).pin_memory()
    address = x.data_ptr()
    del x
    y = torch.tensor([3.0, 4.0]).pin_memory()
    assert y.data_ptr() == address
    assert y.tolist() == [3, 4]
    z = torch.ones(2, pin_memory=True)
    assert z.data_ptr() != address


def test_pinned_memory_waits_for_the_copy_that_reads_it() -> None:
    x = torch.ones(2).pin_memory()
    address = x.data_ptr()
    torch.cuda._sleep(1000000)
    there = x.to("cuda", non_blocking=True)
    del x
    y = torch.zeros(2).pin_memory()
    assert y.data_ptr() != address
    assert there.tolist() == [1, 1]


def test_a_pinned_tensor_can_grow() -> None:
    x = torch.arange(3, dtype=torch.float32).pin_memory()
    x.resize_(5)
    assert x[:3].tolist() == [0, 1, 2]
    assert x.is_pinned()


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_what_cuda_computes_in_no_fixed_order_is_refused(deterministic: None) -> None:
    x = torch.rand(1, 1, 4, 4, device="cuda", requires_grad=True)
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1), mode="reflect")
    with pytest.raises(RuntimeError, match=r"^reflection_pad2d_backward_cuda does not have a deterministic"):
        padded.sum().backward()
    assert torch.nn.functional.pad(x.cpu(), (1, 1, 1, 1), mode="reflect").sum().requires_grad


def test_only_some_uses_are_nondeterministic(deterministic: None) -> None:
    x = torch.tensor([0, 1, 1], device="cuda")
    assert torch.bincount(x).tolist() == [1, 2]
    with pytest.raises(RuntimeError, match="_bincount_cuda"):
        torch.bincount(x, torch.ones(3, device="cuda"))
    assert torch.median(x).item() == 1
    with pytest.raises(RuntimeError, match="median CUDA with indices output"):
        torch.median(x, dim=0)


@pytest.mark.skipif(VERSION < (2, 13), reason="older kernels have no fixed order")
def test_what_got_a_fixed_order_is_no_longer_refused(deterministic: None) -> None:
    """pytorch#151610 (integers in `histc`), #186883 and #99959 (`kthvalue`), #107011 (MaxPool3d)."""
    x = torch.randint(10, (100,), device="cuda")
    assert torch.histc(x, 10, 0, 9).sum().item() == 100
    with pytest.raises(RuntimeError, match=r"^_histc_cuda with floating point input does not have a deterministic"):
        torch.histc(x.float())
    assert torch.kthvalue(torch.tensor([2.0, 1.0], device="cuda"), 1).indices.item() == 1
    image = torch.rand(1, 1, 2, 2, 2, device="cuda", requires_grad=True)
    torch.nn.functional.max_pool3d(image, 2).sum().backward()
    assert image.grad is not None
    assert image.grad.sum().item() == 1


def test_nondeterminism_may_only_be_warned_of(deterministic: None) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="warn_only=True"):
        assert torch.median(torch.tensor([2.0, 1.0], device="cuda"), 0).values.item() == 1


def test_a_number_is_copied_into_a_tensor() -> None:
    x = torch.zeros(2, device="cuda")
    x.copy_(3.5)
    assert x.tolist() == [3.5, 3.5]


def test_old_tensor_types_are_not_recommended() -> None:
    with pytest.warns(UserWarning, match="DtypeTensor constructors are no longer recommended"):
        torch.cuda.FloatTensor([0])


def test_old_sparse_types_make_tensors_where_their_parts_are() -> None:
    index, values = torch.tensor([[0, 1], [1, 0]], device="cuda:1"), torch.ones(2, device="cuda:1")
    sparse: Any = torch.cuda.sparse
    made = sparse.FloatTensor(index, values, torch.Size([3, 3]))
    assert made.type() == "torch.cuda.sparse.FloatTensor"
    assert made.device == values.device
    assert made.to_dense().tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert isinstance(made, sparse.FloatTensor)
    assert not isinstance(made, (torch.cuda.FloatTensor, sparse.DoubleTensor))
    assert not isinstance(values, sparse.FloatTensor)
    empty = sparse.DoubleTensor(2, 3)
    assert (empty.type(), empty.shape, empty._nnz()) == ("torch.cuda.sparse.DoubleTensor", (2, 3), 0)


def test_error_codes_have_cudas_texts() -> None:
    with pytest.raises(torch.cuda.CudaError, match="out of memory"):
        torch.cuda.check_error(2)


def test_an_external_stream_takes_the_device_guard_as_its_device() -> None:
    handle = torch.cuda.Stream(1).cuda_stream
    assert torch.cuda.ExternalStream(handle, device=torch.cuda.device(1)).device.index == 1


def test_zeros_for_an_input_without_gradient_lie_where_it_does() -> None:
    x = torch.ones(1, 1, 4, 4, device="cuda", requires_grad=True)
    gradient = torch.ones(1, 1, 2, 2, device="cuda", requires_grad=True)
    out = torch.nn.functional.adaptive_avg_pool2d(x, 2)
    (first,) = torch.autograd.grad(out, x, gradient, create_graph=True)
    second = torch.autograd.grad(first, (gradient, x), torch.ones_like(first))
    assert [str(made.device) for made in second] == ["cuda:0", "cuda:0"]


def test_a_nested_tensor_of_a_list_goes_to_the_device_that_is_named() -> None:
    parts = [torch.ones(2, 3), torch.ones(2, 4)]
    made = torch.nested.as_nested_tensor(parts, device=torch.device("cuda", 1))
    assert str(made.device) == "cuda:1"
    assert [part.device.index for part in made.unbind()] == [1, 1]


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("linalg_pinv", torch.linalg.pinv),
        ("linalg.cond", torch.linalg.cond),
        ("torch.linalg.matrix_rank", torch.linalg.matrix_rank),
        ("tensorinv", torch.linalg.tensorinv),
    ],
)
def test_linear_algebra_writes_where_its_input_lies(name: str, work: Any) -> None:
    matrix = torch.eye(3, device="cuda:0").reshape(3, 3)
    for place in ("cpu", "cuda:1"):
        words = f"{name}: Expected result and input tensors to be on the same device, but got result on {place} and"
        with pytest.raises(RuntimeError, match=words):
            work(matrix, out=torch.empty(0, device=place))


def test_a_driver_for_singular_values_may_be_named() -> None:
    matrix = torch.randn(3, 3, device="cuda")
    named = torch.linalg.svd(matrix, driver="gesvdj")[1]
    assert torch.allclose(named.cpu(), torch.linalg.svdvals(matrix.cpu()))
    with pytest.raises(RuntimeError, match="unknown svd driver x in svd_cusolver"):
        torch.linalg.svd(matrix, driver="x")
    with pytest.raises(RuntimeError, match="only supported on CUDA inputs"):
        torch.linalg.svd(matrix.cpu(), driver="gesvd")


def test_indices_into_nothing_are_refused_by_the_host() -> None:
    with pytest.raises(IndexError, match="for dimension with size 0"):
        torch.empty(10, 0, device="cuda")[:, [0, 1]]
    torch.cuda.synchronize()  # nothing is wrong with the device


def test_indices_along_a_dimension_lie_with_their_tensor() -> None:
    values = torch.randn(2, 3, device="cuda")
    with pytest.raises(RuntimeError, match=r"Expected tensor to have cuda DeviceType.*torch.take_along_dim\(\)"):
        torch.take_along_dim(values, values.argsort(0).cpu(), 0)


def test_emit_itt_has_nobody_to_emit_to() -> None:
    with torch.autograd.profiler.emit_itt():
        torch.ones(2, device="cuda") + 1


def test_complex_numbers_are_summed_without_nan() -> None:
    values = torch.tensor([[1 + 1j, complex(float("nan"), 1)], [2, 3j]], device="cuda")
    assert values.nansum().item() == 3 + 4j
    assert values.nansum(0).tolist() == [3 + 1j, 3j]
    assert values.nansum(1, keepdim=True).shape == (2, 1)
    with pytest.raises(RuntimeError, match="does not support complex inputs"):
        values.cpu().nansum()


def test_no_driver_is_asked_for_multicast() -> None:
    from torch._C._autograd import DeviceType
    from torch._C._distributed_c10d import _SymmetricMemory

    assert _SymmetricMemory.has_multicast_support(DeviceType.CUDA, 0) is False


def test_a_host_number_takes_no_devices_result() -> None:
    on_host, on_device = torch.tensor(1.0), torch.tensor(2.0, device="cuda")
    for write in (
        lambda: torch.pow(on_device, on_device, out=on_host),
        lambda: torch.cummax(on_device, 0, out=(on_host, torch.tensor(0))),
        lambda: on_host.add_(on_device),
    ):
        with pytest.raises(RuntimeError, match="at least two devices"):
            write()
    assert on_host.item() == 1
    assert (on_device + on_host).item() == 3
    assert torch.zeros(2).fill_(on_device).tolist() == [2, 2]


@pytest.mark.parametrize(
    "call",
    [
        lambda x, number: torch.nn.functional.embedding(number.long(), x[None]),
        lambda x, number: x.index_select(0, number.long()),
        lambda x, number: torch.nn.functional.cross_entropy(x, number.long()),
        lambda x, number: x.clamp(max=number),
        lambda x, number: torch.stack([x[0], number]),
        lambda x, number: x.index_fill(0, number.long(), 1.0),
        lambda x, number: x.masked_select(number.bool()),
        lambda x, number: torch.fake_quantize_per_tensor_affine(x, number + 1, number.int(), 0, 255),
        lambda x, number: torch._fused_adamw_(
            [x],
            [x.clone()],
            [x.clone()],
            [x.clone()],
            [],
            [number + 1],
            lr=0.1,
            beta1=0.9,
            beta2=0.9,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        ),
    ],
)
def test_what_a_cuda_wrapper_checks_takes_no_host_number_either(
    call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    x, number = torch.ones(3, device="cuda"), torch.tensor(0.0)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        call(x, number)
    call(x, number.cuda())
    call(x.cpu(), number)
    assert torch.where(x > 0, x, number).is_cuda


def test_an_overload_of_tensors_takes_a_number_first() -> None:
    x = torch.ones((), dtype=torch.int16, device="cuda")
    assert torch.ops.aten.sub.Tensor(-6, x).item() == -7  # type: ignore[arg-type]
    assert torch.sub(torch.ones(2, device="cuda"), x).tolist() == [0, 0]


def test_eigenvectors_lie_in_rows() -> None:
    """As CUDA's do; the CPU's lie in columns."""
    matrix = torch.randn(2, 5, 5, device="cuda")
    values, vectors = torch.linalg.eig(matrix)
    assert vectors.is_contiguous()
    torch.testing.assert_close(matrix.to(vectors.dtype) @ vectors, vectors * values[:, None])
