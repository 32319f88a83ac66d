"""What CUDA's libraries say of their first use during a capture: texts of PyTorch 2.11 with CUDA 13.0 on an H100."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import windtunnel
from windtunnel.session import Session

FAILED_BEFORE = "CUDA error: operation failed due to a previous error during capture"
CUBLAS = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
CUDNN = "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
CUFFT = "cuFFT error: CUFFT_INTERNAL_ERROR"
CUSOLVER = (
    "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`. If you keep seeing this "
    "error, you may use `torch.backends.cuda.preferred_linalg_library()` to try linear algebra operators with other "
    "supported backends. See "
    "https://pytorch.org/docs/stable/backends.html#torch.backends.cuda.preferred_linalg_library"
)
REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "a product": (lambda x: x @ x, CUBLAS),
    "a layer": (lambda x: F.linear(x, x, x[0]), CUBLAS),
    "products": (lambda x: torch.bmm(x[None], x[None]), CUBLAS),
    "cuBLAS's handle": (lambda x: x + torch.cuda.current_blas_handle() * 0, CUBLAS),
    "a convolution": (lambda x: F.conv2d(x.view(1, 1, 64, 64), x[:3, :3].view(1, 1, 3, 3)), CUDNN),
    "a spectrum": (lambda x: torch.fft.fft(x).abs(), CUFFT),
    "a decomposition": (lambda x: torch.linalg.cholesky_ex(x).L, CUSOLVER),
}
ALLOWED: dict[str, Callable[[Tensor], object]] = {
    "a kernel that is loaded late": torch.erfinv,
    "random numbers": torch.rand_like,
    "a sort": torch.sort,
    "an empty product": lambda x: x[:0] @ x,
}


@pytest.fixture(params=[False, True], ids=["data", "no data"])
def either(request: pytest.FixtureRequest) -> Iterator[Session]:
    """Two V100, with data and without."""
    with windtunnel.emulate("2xV100", no_data=request.param) as session:
        yield session


def identity() -> Tensor:
    return torch.eye(64, device="cuda")


def capture(work: Callable[[], object], mode: str = "global") -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        work()
    return graph


def refused(work: Callable[[], object], text: str, mode: str = "global") -> None:
    """Capture work that a library refuses; the capture is invalid then, whatever the program does with the error."""

    def caught() -> None:
        with pytest.raises(RuntimeError) as first:
            work()
        assert first.type is RuntimeError
        assert str(first.value).splitlines()[0] == text

    with pytest.raises(getattr(torch, "AcceleratorError", RuntimeError)) as last:
        capture(caught, mode)
    assert str(last.value).splitlines()[0] == FAILED_BEFORE


@pytest.mark.parametrize("name", REFUSED)
def test_a_first_use_is_refused_until_there_was_a_warm_up(either: Session, name: str) -> None:
    work, text = REFUSED[name]
    x = identity()
    for mode in ("global", "thread_local"):
        refused(lambda: work(x), text, mode)
    want = work(x)
    made: list[Tensor] = []
    graph = capture(lambda: made.append(work(x)))
    graph.replay()
    assert made[0].shape == want.shape
    if not either.options.no_data:
        assert torch.equal(made[0], want)


@pytest.mark.parametrize("name", REFUSED)
def test_a_relaxed_capture_allows_it(session: Session, name: str) -> None:
    work, x = REFUSED[name][0], identity()
    capture(lambda: work(x), "relaxed").replay()


@pytest.mark.parametrize("name", ALLOWED)
def test_what_needs_no_library_needs_no_warm_up(session: Session, name: str) -> None:
    x = identity()
    capture(lambda: ALLOWED[name](x)).replay()


def test_each_device_has_handles_of_its_own(session: Session) -> None:
    first, second = (torch.eye(4, device=f"cuda:{index}") for index in range(2))
    first @ first
    with torch.cuda.device(1):
        refused(lambda: second @ second, CUBLAS)


def test_a_backward_pass_has_a_handle_of_its_own(session: Session) -> None:
    x = identity().requires_grad_()

    def step() -> None:
        (x @ x).sum().backward()

    x @ x
    refused(step, CUBLAS)
    capture(step, "thread_local")  # which says nothing of autograd's thread
    x.grad = None
    step()
    capture(step)


def test_a_workspace_of_another_stream_is_none_of_a_handle(session: Session) -> None:
    x = identity()
    x @ x
    torch._C._cuda_clearCublasWorkspaces()
    capture(lambda: x @ x).replay()


def test_a_spectrum_of_another_shape_needs_a_plan_of_its_own(session: Session) -> None:
    x = identity()
    torch.fft.fft(x)
    capture(lambda: torch.fft.fft(x))
    refused(lambda: torch.fft.fft(x[:32]), CUFFT)
    torch.backends.cuda.cufft_plan_cache.clear()
    refused(lambda: torch.fft.fft(x), CUFFT)
    assert torch.backends.cuda.cufft_plan_cache.size == 0


def test_graphed_callables_warm_up_by_themselves(either: Session) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(72, 4)).cuda()
    x = torch.ones(2, 1, 8, 8, device="cuda")
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    graphed(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
