"""Device-side asserts: a bad index comes up where the host next waits, and the process can use no GPU after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import windtunnel
from windtunnel.session import Session

TRIGGERED = "CUDA error: device-side assert triggered"


def on_device(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, device="cuda")


GUILTY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index": lambda x, bad: x[bad],
    "index_put": lambda x, bad: x.index_put_((bad,), x[:2] * 2),
    "index_select": lambda x, bad: x.index_select(0, bad),
    "index_add": lambda x, bad: x.index_add(0, bad, x[:2]),
    "gather": lambda x, bad: x.gather(0, bad.view(2, 1)),
    "scatter": lambda x, bad: x.scatter(0, bad.view(2, 1), 1.0),
    "take": lambda x, bad: x.take(bad * 100),
    "embedding": lambda x, bad: F.embedding(bad, x),
    "nll_loss": lambda x, bad: F.nll_loss(x[:2], bad),
    "cross_entropy": lambda x, bad: F.cross_entropy(x[:2], bad),
}


@pytest.mark.parametrize("work", GUILTY.values(), ids=GUILTY.keys())
def test_it_comes_up_at_the_next_synchronization(
    work: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], session: Session
) -> None:
    x, bad = torch.randn(4, 3, device="cuda"), on_device(1, 9)
    out = work(x, bad)
    assert out.is_cuda
    (out + 1).mul_(2)  # asynchronous calls go on
    with pytest.raises(RuntimeError) as caught:
        torch.cuda.synchronize()
    assert str(caught.value).startswith(TRIGGERED)
    assert "For debugging consider passing CUDA_LAUNCH_BLOCKING=1" in str(caught.value)
    assert isinstance(caught.value, getattr(torch, "AcceleratorError", RuntimeError))


def test_the_shape_of_the_result_is_right(session: Session) -> None:
    x, bad = torch.randn(4, 3, device="cuda"), on_device(1, 9)
    assert x[bad].shape == (2, 3)
    assert x[:, bad].shape == (4, 2)
    assert F.embedding(bad, x).shape == (2, 3)
    assert F.cross_entropy(x[:2], bad).shape == ()
    assert x.index_select(1, bad).dtype == torch.float32


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: print(x),
        lambda x: x.nonzero(),
        lambda x: torch.cuda.current_stream().synchronize(),
        lambda x: torch.ones(3).cuda(),
    ],
    ids=["item", "cpu", "print", "nonzero", "stream", "copy"],
)
def test_whatever_waits_raises_it(look: Callable[[torch.Tensor], object], session: Session) -> None:
    x, bad = torch.randn(4, 3, device="cuda"), on_device(1, 9)
    out = x[bad]
    with pytest.raises(RuntimeError, match=TRIGGERED):
        look(out)


def test_every_later_call_raises_it(session: Session) -> None:
    x, bad = torch.randn(4, 3, device="cuda"), on_device(1, 9)
    _ = x[bad]
    with pytest.raises(RuntimeError, match=TRIGGERED):
        torch.cuda.synchronize()
    later: list[Callable[[], object]] = [
        lambda: x + 1,
        lambda: x @ x.T,
        lambda: x.cpu(),
        lambda: torch.zeros(3, device="cuda"),
        lambda: x[bad],
        torch.cuda.synchronize,
    ]
    for call in later:
        with pytest.raises(RuntimeError, match=TRIGGERED):
            call()
    assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]
    assert x.shape == (4, 3)


def test_another_stream_may_be_waited_for_first(session: Session) -> None:
    x, bad = torch.randn(4, 3, device="cuda"), on_device(1, 9)
    side = torch.cuda.Stream()
    _ = x[bad]
    side.synchronize()
    with pytest.raises(RuntimeError, match=TRIGGERED):
        torch.cuda.synchronize()


def test_launch_blocking_raises_at_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with windtunnel.emulate("V100"):
        x, bad = torch.randn(4, 3, device="cuda"), on_device(1, 9)
        with pytest.raises(RuntimeError, match=TRIGGERED) as caught:
            F.embedding(bad, x)
        assert "CUDA_LAUNCH_BLOCKING" not in str(caught.value)


def test_the_report_names_the_guilty_line(session: Session) -> None:
    x, bad = torch.randn(4, 3, device="cuda"), on_device(1, 9)
    line = test_the_report_names_the_guilty_line.__code__.co_firstlineno + 3
    _ = x[bad]
    with pytest.raises(RuntimeError, match=TRIGGERED):
        torch.cuda.synchronize()
    (finding,) = [finding for finding in session.findings() if finding.code == "device-assert"]
    assert (Path(finding.site.file).name, finding.site.line) == (Path(__file__).name, line)
    assert finding.severity == "error"
    assert "aten::index" in finding.message


def test_wrong_shapes_raise_at_the_call(session: Session) -> None:
    x = torch.randn(4, 3, device="cuda")
    with pytest.raises(IndexError, match="too many indices"):
        x[on_device(0), on_device(0), on_device(0)]
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.index_select(5, on_device(0))
    with pytest.raises((RuntimeError, IndexError), match=r"int64|integer|Long"):
        x.gather(0, torch.zeros(1, 1, device="cuda"))
    torch.cuda.synchronize()


def test_the_host_raises_at_the_call(session: Session) -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        torch.randn(4, 3)[torch.tensor([9])]
    torch.cuda.synchronize()


def test_a_second_emulation_starts_afresh() -> None:
    with windtunnel.emulate("V100"):
        _ = torch.randn(4, 3, device="cuda")[on_device(9)]
        with pytest.raises(RuntimeError, match=TRIGGERED):
            torch.cuda.synchronize()
    with windtunnel.emulate("V100"):
        x = torch.ones(3, device="cuda")[on_device(0, 2)]
        assert x.tolist() == [1.0, 1.0]
