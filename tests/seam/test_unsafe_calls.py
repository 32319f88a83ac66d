"""Potentially unsafe calls of other threads while a graph is captured (cudaThreadExchangeStreamCaptureMode)."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader

import windtunnel

UNSUPPORTED = "operation not permitted when stream is capturing"
INVALIDATED = "operation failed due to a previous error during capture"


def meanwhile(call: Callable[[], object], mode: str) -> tuple[BaseException | None, BaseException | None]:
    """What `call` raises in another thread while this one captures in `mode`, and what the capture raises then."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
        except RuntimeError as error:
            raised.append(error)
        else:
            raised.append(None)

    ended = None
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin(capture_error_mode=mode)  # `torch.cuda.graph` would empty the caches first
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        try:
            x.add_(1)
        except RuntimeError as error:
            ended = error
            with pytest.raises(RuntimeError, match=INVALIDATED):
                graph.capture_end()
        else:
            graph.capture_end()
    return raised[0], ended


def pins() -> object:
    return torch.ones(1000).pin_memory()


def allocates() -> object:
    return torch.empty(64 << 20, device="cuda")


CALLS: dict[str, Callable[[], object]] = {
    "cudaHostAlloc": pins,
    "cudaMalloc": allocates,
    "cudaEventQuery": lambda: torch.cuda.Event().query(),
}


@pytest.mark.parametrize("call", CALLS)
def test_another_thread_s_unsafe_call_fails_and_takes_a_global_capture_with_it(call: str) -> None:
    with windtunnel.emulate("A100"):
        raised, ended = meanwhile(CALLS[call], "global")
        assert isinstance(raised, getattr(torch, "AcceleratorError", RuntimeError))
        assert UNSUPPORTED in str(raised)
        assert INVALIDATED in str(ended)
        torch.ones(3, device="cuda").sum().item()  # the device is as before
        assert meanwhile(lambda: None, "global") == (None, None)


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
@pytest.mark.parametrize("call", CALLS)
def test_other_modes_leave_other_threads_alone(call: str, mode: str) -> None:
    with windtunnel.emulate("A100"):
        assert meanwhile(CALLS[call], mode) == (None, None)


def test_what_is_cached_takes_no_call() -> None:
    with windtunnel.emulate("A100"):
        allocates()
        pins()
        assert meanwhile(allocates, "global") == (None, None)
        assert meanwhile(pins, "global") == (None, None)


def test_a_cached_block_with_an_event_is_asked_for_it() -> None:
    def copies() -> None:
        pinned = torch.ones(1000).pin_memory()
        pinned.to("cuda", non_blocking=True)

    with windtunnel.emulate("A100"):
        copies()
        raised, ended = meanwhile(pins, "global")
    assert UNSUPPORTED in str(raised)
    assert INVALIDATED in str(ended)


def test_pytorch_relaxes_the_rules_for_its_own_allocations_in_a_capture() -> None:
    with windtunnel.emulate("A100"):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            allocates()
            torch.ones(1000).pin_memory()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
            with pytest.raises(RuntimeError, match=UNSUPPORTED):
                torch.cuda.Event().query()
            with pytest.raises(RuntimeError, match=INVALIDATED):
                graph.capture_end()


def test_a_loader_s_thread_is_let_be_and_found() -> None:
    """https://github.com/LibreYOLO/libreyolo/pull/681: two of a hundred runs failed; here none does.

    The page `capture-beside-a-loader` has the finding.
    """
    with windtunnel.emulate("A100"):
        data = torch.ones(1 << 15)
        loader = DataLoader(
            [data[: 1 << size] for size in range(8, 15)], batch_size=None, num_workers=1, pin_memory=True
        )
        batches = iter(loader)
        next(batches)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.ones(4, device="cuda")
            for batch in batches:
                assert batch.is_pinned()
