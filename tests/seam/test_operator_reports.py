"""What people reported of single operators on real GPUs: waits, asserts, alerts and texts that the CPU has not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from windtunnel.session import Session
from windtunnel.trace.operation import Kind

Made = Callable[[], object]


def on_device(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, device="cuda")


def normal() -> Made:
    """pytorch#108968, item 4."""
    std = torch.ones(3, device="cuda")
    return lambda: torch.normal(0.0, std)


def sorter() -> Made:
    """pytorch#91606: the indices of `sorter` are looked at since then."""
    x, order, values = on_device(3.0, 1.0, 2.0), on_device(1, 2, 0), on_device(1.5)
    return lambda: torch.searchsorted(x, values, sorter=order)


def ends() -> Made:
    """pytorch#187933: "in eager mode, tensor inputs are converted via `item()`"."""
    start, end = on_device(0.0)[0], on_device(1.0)[0]
    return lambda: torch.linspace(start, end, 5)


def one_end() -> Made:
    end = on_device(1.0)[0]
    return lambda: torch.logspace(0.0, end, 5, device="cuda")


def fill_value() -> Made:
    x, places, value = torch.zeros(4, device="cuda"), on_device(1), on_device(2.0)[0]
    return lambda: x.index_fill_(0, places, value)


def lengths() -> Made:
    """pytorch#53727: what `unsafe` leaves out."""
    x, parts = torch.ones(4, device="cuda"), on_device(1, 3)
    return lambda: torch.segment_reduce(x, "sum", lengths=parts)


def sparse() -> Made:
    x = torch.eye(3, device="cuda")
    return lambda: x.to_sparse()


def inverse() -> Made:
    x, out = torch.eye(3, device="cuda"), torch.empty(3, 3, device="cuda")
    return lambda: torch.cholesky_inverse(x, out=out)


WAITS = {normal: 2, sorter: 2, ends: 2, one_end: 1, fill_value: 1, lengths: 2, sparse: 1, inverse: 1}
"""How many values each brings to the host."""


@pytest.mark.parametrize(
    ("mode", "message"),
    [(True, "invalid argument to set_sync_debug_mode"), (3, "invalid value of debug_mode, expected one of 0,1,2")],
)
def test_a_debug_mode_that_is_none(session: Session, mode: int, message: str) -> None:
    """pytorch/pytorch#70490; THCPModule_cudaSetSyncDebugMode of torch/csrc/cuda/Module.cpp."""
    with pytest.raises(RuntimeError, match=message):
        torch.cuda.set_sync_debug_mode(mode)
    assert torch.cuda.get_sync_debug_mode() == 0


@pytest.mark.parametrize(("make", "values"), WAITS.items(), ids=lambda it: getattr(it, "__name__", str(it)))
def test_values_are_read_within_an_operator(make: Callable[[], Made], values: int, session: Session) -> None:
    work = make()
    before = len(session.trace)
    work()
    waits = [row for row in list(session.trace)[before:] if row.kind == Kind.SYNCHRONIZE]
    copies = [row for row in list(session.trace)[before:] if row.kind == Kind.COPY and row.signature.detail]
    assert len(waits) == len(copies) == values
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        work()
    torch.cuda.set_sync_debug_mode("default")


def test_a_pseudoinverse_waits_for_its_decomposition(session: Session) -> None:
    x = torch.eye(3, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        torch.linalg.pinv(x)
    torch.cuda.set_sync_debug_mode("default")


def test_without_these_arguments_nothing_is_read(session: Session) -> None:
    x, order, parts, mean = torch.rand(4, device="cuda"), on_device(1, 0), on_device(1, 3), torch.ones(3, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    torch.searchsorted(x, x)
    torch.segment_reduce(x, "sum", lengths=parts, unsafe=True)
    torch.linspace(0.0, 1.0, 5, device="cuda")
    x.index_fill_(0, order, 2.0)
    torch.repeat_interleave(x[:2], parts, output_size=4)
    torch.normal(mean, 1.0)
    torch.cuda.set_sync_debug_mode("default")


ASSERTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    # torchtitan#3335: "Invalid input! In `repeat_interleave`, the `output_size` argument (30364) must be the same as
    # the sum of the elements in the `repeats` tensor (30365)."
    "repeat_interleave": lambda x, bad: torch.repeat_interleave(x, bad, output_size=5),
    "multi_margin_loss": lambda x, bad: F.multi_margin_loss(x.expand(2, 2), bad),  # pytorch#88648, #88724
    "put": lambda x, bad: x.put_(bad, x * 2),  # pytorch#73176
    "index_reduce": lambda x, bad: x.index_reduce_(0, bad, x * 2, "amax"),
}


@pytest.mark.parametrize("work", ASSERTS.values(), ids=ASSERTS.keys())
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_kernels_assert_what_the_cpu_raises(
    work: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], session: Session
) -> None:
    out = work(torch.rand(2, device="cuda"), on_device(1, 9))
    assert out.is_cuda
    with pytest.raises(RuntimeError, match="device-side assert triggered"):
        torch.cuda.synchronize()


def test_repeats_that_the_host_has_looked_at_are_refused_at_once(session: Session) -> None:
    with pytest.raises(RuntimeError, match=r"^repeats can not be negative"):
        torch.repeat_interleave(torch.rand(2, device="cuda"), on_device(1, -1))


def enlarged(mode: str) -> None:
    image = torch.rand(1, 1, 4, 4, device="cuda", requires_grad=True)
    F.interpolate(image, scale_factor=2, mode=mode, antialias=True).sum().backward()


ALERTS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "scatter_reduce_cuda_prod_": lambda x, at: x.scatter_reduce(0, at, x, "prod"),  # pytorch#98060
    "scatter_reduce_cuda_kernel": lambda x, at: x.scatter(0, at, x, reduce="multiply"),
    "index_reduce_cuda": lambda x, at: x.index_reduce(0, at, x, "amin"),
    "upsample_bilinear2d_aa_backward_out_cuda": lambda x, at: enlarged("bilinear"),
    "upsample_bicubic2d_aa_backward_out_cuda": lambda x, at: enlarged("bicubic"),
}


@pytest.mark.parametrize("name", ALERTS)
@pytest.mark.filterwarnings("ignore:index_reduce", "ignore:The reduce argument")
def test_kernels_of_no_fixed_order_say_so(name: str, session: Session) -> None:
    x, at = torch.rand(2, device="cuda"), on_device(1, 1)
    torch.use_deterministic_algorithms(True)
    try:
        x.scatter_reduce(0, at, x, "sum")  # which has an order, as have `mean`, `amax` and `amin`
        x.scatter(0, at, x, reduce="add")
        with pytest.raises(RuntimeError, match=f"^{name} does not have a deterministic implementation"):
            ALERTS[name](x, at)
    finally:
        torch.use_deterministic_algorithms(False)


def image(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(1, 1, 4, 4, dtype=dtype, device="cuda")


TEXTS: dict[str, Made] = {
    # Yu-Fangxu/COLD-Attack#20, hpcaitech/ColossalAI#2392
    "Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor) should be the same": lambda: F.conv2d(
        image(torch.half), image()
    ),
    # kijai/ComfyUI-WanVideoWrapper#35, LeapLabTHU/ACmix#15
    "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same": lambda: F.conv2d(
        image(), image(torch.half)
    ),
    "Input type (CUDABFloat16Type) and weight type (torch.cuda.HalfTensor) should be the same": lambda: F.conv2d(
        image(torch.bfloat16), image(torch.half)
    ),
    "Input type (CUDABFloat16Type) and weight type (CPUBFloat16Type) should be the same": lambda: F.conv2d(
        image(torch.bfloat16), image(torch.bfloat16).cpu()
    ),
    "Input type (torch.cuda.DoubleTensor) and weight type (torch.cuda.FloatTensor) should be the same": lambda: (
        F.conv_transpose2d(image(torch.double), image())
    ),
    "cannot pin 'CUDABFloat16Type' only dense CPU tensors can be pinned": lambda: image(torch.bfloat16).pin_memory(),
    "Expected tensor for argument #1 'input' to have the same type as tensor for argument #2 'weight'; but type "
    "torch.cuda.FloatTensor does not equal torch.cuda.HalfTensor (while checking arguments for cudnn_batch_norm)": (
        lambda: torch.nn.BatchNorm2d(1).cuda().half()(image())
    ),
    "\"fused_dropout\" not implemented for 'ComplexFloat'": lambda: F.dropout(image(torch.complex64)),
    "\"adaptive_avg_pool2d_cuda\" not implemented for 'Long'": lambda: F.adaptive_avg_pool2d(image(torch.int64), 2),
    "expected probabilities tensor to have floating type, got Long": lambda: torch.bernoulli(image(torch.int64)),
    # pytorch/pytorch#117122: "`driver` other than `gels`"
    "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA": lambda: torch.linalg.lstsq(
        image()[0, 0], image()[0, 0], driver="gelsd"
    ),
    "Input type (float) and bias type (c10::Half) should be the same": lambda: F.conv2d(
        image(), image(), torch.ones(1, dtype=torch.half, device="cuda")
    ),
    # cai4cai/torchsparsegradutils#58
    "tensor_split expected tensor_indices_or_sections to be on cpu, but it's on cuda:0": lambda: torch.tensor_split(
        on_device(1, 2, 3), on_device(1)
    ),
    # deepspeedai/DeepSpeed#939, NVIDIA/apex#912
    "\"cdist_cuda\" not implemented for 'Half'": lambda: torch.cdist(image(torch.half), image(torch.half)),
    "\"pdist_cuda\" not implemented for 'Half'": lambda: F.pdist(image(torch.half)[0, 0]),
    "Sort currently does not support complex dtypes on CUDA.": lambda: image(torch.complex64).sort(),
    "\"upsample_nearest2d_out_frame\" not implemented for 'Long'": lambda: F.interpolate(
        image(torch.long), scale_factor=2
    ),
    "\"max_pool2d_with_indices_out_cuda_frame\" not implemented for 'Bool'": lambda: F.max_pool2d(image(torch.bool), 2),
}


@pytest.mark.parametrize("text", TEXTS)
def test_refusals_are_in_the_words_of_cuda(text: str, session: Session) -> None:
    with pytest.raises(RuntimeError) as caught:
        TEXTS[text]()
    assert str(caught.value).splitlines()[0] == text
